"""The same rates, compiled: ours, then timm's."""

from collections.abc import Callable

from benchmarks.gpu import peers
from benchmarks.gpu.part import Part, main
from benchmarks.gpu.parts.speed import GENERATED, TIMM, beside_the_record, kind_of, run_variants
from benchmarks.gpu.throughput import Found, job_of, ours, step_of


def work(part: Part) -> None:
    """Ours first: each compiles for a minute or more."""
    job, rates = job_of(part), dict[str, float]()
    variants: dict[str, Callable[[], Found]] = {
        f"{GENERATED}, compiled": lambda: ours(job, None, True),
        f"{TIMM}, compiled": lambda: step_of(
            job, peers.timm_step(job.model, job.device, job.batch, job.size, True, kind_of(job))
        ),
    }
    run_variants(part, job, variants, rates, set(variants))
    beside_the_record(part, rates.get(f"{GENERATED}, compiled", 0.0))


if __name__ == "__main__":
    main(work)
