"""stubs.py TORCH_LIB_DIR OUT_DIR: stand-ins for the NVIDIA libraries that torch's CUDA build links, for CPU-only use.

torch does not import without them. This reads which libraries, symbols and symbol versions torch's own libraries want
and compiles one small library for each, in which every function returns an error ("no device" for the CUDA runtime).
Needs gcc, nm and readelf.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NVIDIA = re.compile(r"lib(cu|nccl|nv)")
NO_DEVICE, ERROR = 100, 1


def lines(*command: str) -> list[str]:
    """What the command prints."""
    return subprocess.check_output(command, text=True).splitlines()


def read(libraries: list[Path]) -> tuple[set[str], dict[str, dict[str, set[str]]], set[str]]:
    """The NVIDIA libraries that are needed, their versioned symbols by library and version, and unversioned symbols."""
    needed: set[str] = set()
    owner: dict[str, str] = {}
    for library in libraries:
        needed |= {
            m[1] for line in lines("readelf", "-d", str(library)) if (m := re.search(r"NEEDED.*\[(.*?)\]", line))
        }
        file = ""
        for line in lines("readelf", "-VW", str(library)):  # which library owns which symbol version
            if m := re.search(r"File: (\S+)", line):
                file = m[1]
            elif m := re.search(r"Name: (\S+)  Flags: .*Version", line):
                owner.setdefault(m[1], file)
    wanted: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    plain: set[str] = set()
    defined: set[str] = set()
    for library in libraries:
        for line in lines("nm", "-D", str(library)):
            *_, kind, name = line.split()
            symbol, _, version = name.partition("@")
            version = version.lstrip("@")
            if kind not in "Uw":
                defined.add(symbol)
            elif NVIDIA.match(owner.get(version, "")):
                wanted[owner[version]][version].add(symbol)
            elif not version and re.match(r"(nccl|cu|nv)", symbol):
                plain.add(symbol)
    return set(filter(NVIDIA.match, needed)), wanted, plain - defined


def compile_stub(library: str, versions: dict[str, set[str]], symbols: set[str], result: int, out: Path) -> None:
    """Write one shared library whose functions all return `result`."""
    source, script = out / "stub.c", out / "stub.map"
    source.write_text("".join(f"int {symbol}(void) {{ return {result}; }}\n" for symbol in sorted(symbols)))
    script.write_text(
        "".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n" for version, names in versions.items())
    )
    linker = [f"-Wl,-soname,{library}"] + ([f"-Wl,--version-script={script}"] if versions else [])
    subprocess.check_call(
        ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", str(out / library), *linker, str(source)]
    )
    source.unlink()
    script.unlink()


def main() -> None:
    """Make every stub; symbols without a version may lie in any library, so the CUDA runtime's stub holds them."""
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    needed, wanted, plain = read(sorted(Path(sys.argv[1]).glob("*.so*")))
    for library in sorted(needed):
        versions = wanted.get(library, {})
        runtime = library.startswith("libcudart")
        symbols = set().union(*versions.values()) | (plain if runtime else set())
        compile_stub(library, versions, symbols, NO_DEVICE if runtime else ERROR, out)
        print(library, len(symbols))


if __name__ == "__main__":
    main()
