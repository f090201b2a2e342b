"""Write the charts' values.schema.json and README.md, or check that they are current.

python scripts/schemas/generate.py [--check]
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from bundle import Schema, bundle, from_kubernetes, settings, trim

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "trainyard"
BIN = ROOT / "build" / "bin"
SUBCHARTS = ("storage", "secrets", "dataset", "pytorchjob", "mpijob", "trainjob", "filebrowser")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a program and return what it prints; end with its message when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"schemas: {' '.join(str(part) for part in command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def from_values(values: Path) -> Schema:
    """Make the schema of one annotated values.yaml."""
    tool = BIN / "helm-values-schema-json"
    if not tool.exists():
        sys.exit("schemas: build/bin/helm-values-schema-json is missing: run scripts/tools/build")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "schema.json"
        run(tool, "--no-additional-properties", "--use-helm-docs", "-f", values, "-o", out)
        schema: Schema = trim(json.loads(out.read_text()))
        return schema


def pool(umbrella: Schema, subcharts: dict[str, Schema]) -> Schema:
    """Collect all that an annotation may refer to."""
    shared = umbrella["properties"]["global"]["properties"]
    trainer = json.loads(run(ROOT / ".venv/bin/python", "-m", "trainers.config", "--schema"))
    prepare = json.loads(run(ROOT / ".venv/bin/python", "-m", "trainers.prepare", "--schema"))
    definitions = {}
    for kind in ("pod-v1", "networkpolicy-networking-v1"):
        definitions |= json.loads((ROOT / f"build/schemas/{kind}.json").read_text())["definitions"]
    own: Schema = yaml.safe_load((Path(__file__).parent / "defs.yaml").read_text())
    # Which job trains is asked once: a job's own overrides cannot say it
    training = {key: value for key, value in shared["training"]["properties"].items() if key != "operator"}
    return (
        own
        | from_kubernetes(definitions)
        | {name: {k: v for k, v in schema.items() if k != "$schema"} for name, schema in subcharts.items()}
        | {"training": shared["training"] | {"properties": training}, "scheduling": shared["scheduling"]}
        | {"recipe": trainer["properties"]["recipe"], "trainer-config": settings(trainer, "recipe")}
        | {"prepare-config": settings(prepare, "source", "out")}
    )


def schemas() -> dict[Path, str]:
    """Return each chart's schema, by file."""
    umbrella = from_values(CHART / "values.yaml")
    subcharts = {name: from_values(CHART / "charts" / name / "values.yaml") for name in SUBCHARTS}
    known = pool(umbrella, subcharts)
    # A subchart's own schema stays shallow where the umbrella's is deep: a mistake is said once.
    shallow = known | {name: {"type": "object"} for name in ("training", "scheduling", "prepare-config")}
    umbrella["allOf"] = [{"$ref": "#/$defs/tag-or-digests"}]  # no annotation of values.yaml reaches the root
    found = {CHART / "values.schema.json": bundle(umbrella, known)}
    for name, schema in subcharts.items():
        found[CHART / "charts" / name / "values.schema.json"] = bundle(schema, shallow)
    return {path: json.dumps(schema, indent=1, ensure_ascii=False) + "\n" for path, schema in found.items()}


def readmes() -> dict[Path, str]:
    """Return each chart's README as helm-docs writes it, by file; made in a copy, so that a check changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "trainyard"
        shutil.copytree(CHART, copy)
        shutil.copy(Path(__file__).parent / "readme.gotmpl", folder)
        options = ("--sort-values-order", "file", "--log-level", "warning", "--template-files", "./readme.gotmpl")
        run(BIN / "helm-docs", "--chart-search-root", folder, *options)
        return {CHART / path.relative_to(copy): path.read_text() for path in sorted(copy.rglob("README.md"))}


def main() -> int:
    """Write or check all generated files."""
    parser = argparse.ArgumentParser(description="Write the charts' values.schema.json and README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; end 1 when a file is not current")
    check = parser.parse_args().check
    wanted = schemas() | readmes()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'not current' if check else 'written'}")
        if not check:
            path.write_text(wanted[path])
    if check and stale:
        print("run scripts/schemas/generate and commit what it writes", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
