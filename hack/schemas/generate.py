"""Write what is made of the charts' annotated values, schemas, the book of keys and README.md, or check it.

python hack/schemas/generate.py [--check]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import readme
import yaml
from bundle import Schema, bundle, from_kubernetes, loose, plain, settings, trim
from keys import book, needed, where

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART = ROOT / "charts" / "trainyard"
BIN = ROOT / "build" / "bin"
SUBCHARTS = ("storage", "secrets", "dataset", "evaluate", "pytorchjob", "mpijob", "trainjob", "filebrowser")
QUEUEING = ("queue", "queuePriority", "gang")  # of a job, not of a pod


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
        sys.exit("schemas: build/bin/helm-values-schema-json is missing: run hack/tools/build")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "schema.json"
        run(tool, "--no-additional-properties", "--use-helm-docs", "-f", values, "-o", out)
        schema: Schema = trim(json.loads(out.read_text()))
        return schema


def give_pod_settings(umbrella: Schema, subcharts: dict[str, Schema], own: Schema) -> None:
    """Add the settings that every kind of pod has, in place; without a default, so that a wrong kind is said once."""
    every = own["pod-settings"]["properties"]
    shared = umbrella["properties"]["global"]["properties"]
    shared["scheduling"]["properties"] |= own["placement-lists"]["properties"]
    training = shared["training"]
    training["properties"] |= every | own["training-settings"]["properties"]
    subcharts["mpijob"]["properties"]["launcher"]["properties"] |= every
    subcharts["filebrowser"]["properties"] |= every
    queued = every["scheduling"] | {"$ref": "#/$defs/dataset-placement"}
    for name in ("dataset", "evaluate"):
        subcharts[name]["properties"] |= every | {"scheduling": queued}
    claims = own["training-settings"]["properties"]["resourceClaims"]
    subcharts["evaluate"]["properties"]["resourceClaims"] = claims


def pool(umbrella: Schema, subcharts: dict[str, Schema], own: Schema) -> Schema:
    """Collect all that an annotation may refer to."""
    shared = umbrella["properties"]["global"]["properties"]
    trainer = json.loads(run(ROOT / ".venv/bin/python", "-m", "trainyard", "config", "--schema"))
    prepare = json.loads(run(ROOT / ".venv/bin/python", "-m", "trainyard", "prepare", "--schema"))
    definitions = {}
    for kind in ("pod-v1", "networkpolicy-networking-v1"):
        definitions |= json.loads((ROOT / f"build/schemas/{kind}.json").read_text())["definitions"]
    # Which job trains is asked once: a job's own overrides cannot say it
    training = {key: value for key, value in shared["training"]["properties"].items() if key != "operator"}
    scheduling = shared["scheduling"]
    placement = {key: value for key, value in scheduling["properties"].items() if key not in QUEUEING}
    queued = placement | own["queueing"]["properties"]
    return (
        own
        | (kubernetes := from_kubernetes(definitions))
        | {"env-var": kubernetes["k8s.EnvVar"]}
        | {name: {k: v for k, v in schema.items() if k != "$schema"} for name, schema in subcharts.items()}
        | {"training": shared["training"] | {"properties": training}}
        | {"placement": scheduling | {"properties": placement}}
        | {"dataset-placement": scheduling | {"properties": queued}}
        | {"recipe": trainer["properties"]["recipe"], "trainer-config": settings(trainer, "recipe")}
        | {"prepare-config": settings(prepare, "source", "out")}
    )


def text(data: object) -> str:
    """Write JSON on one line: nobody is to read it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def undescribed(node: object, named: bool = False) -> object:
    """Drop descriptions: Helm prints none, and would read them at each command."""
    if isinstance(node, list):
        return [undescribed(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if named or key != "description"}
    return {k: undescribed(v, k in ("properties", "$defs", "patternProperties")) for k, v in kept.items()}


def alone(name: str, known: Schema) -> Schema:
    """Return the schema with which a part that is used alone refuses a misspelt key of its own.

    The shared values are the umbrella's business, and what is Kubernetes' own the API server's: both stay open here.
    """
    closed = bundle(known[name], known | {one: {} for one in known if one.startswith("k8s.")})
    return closed | {"properties": closed["properties"] | {"common": {}, "global": {}}}


def shared(values: Schema) -> str:
    """Return the defaults of the shared values, for a part that is used alone."""
    head = "# The shared values, for a part used alone. Generated: values.yaml of the umbrella describes them.\n"
    return head + yaml.safe_dump({"global": values["global"]}, sort_keys=False, width=130)


def files() -> dict[Path, str]:
    """Return all generated files."""
    umbrella = from_values(CHART / "values.yaml")
    subcharts = {name: from_values(CHART / "charts" / name / "values.yaml") for name in SUBCHARTS}
    own: Schema = yaml.safe_load((HERE / "defs.yaml").read_text())
    words = yaml.safe_load((HERE / "words.yaml").read_text())
    give_pod_settings(umbrella, subcharts, own)
    known = pool(umbrella, subcharts, own)
    strict = bundle(umbrella, known) | {"patternProperties": {"^x-": {}}}  # a user's own, for anchors of YAML
    # Kubernetes' own definitions stay closed: the chart has no words for them
    opened = {name: schema if name.startswith("k8s.") else loose(schema, known) for name, schema in known.items()}
    # but of the value of a variable, which people write as a number
    variable = known["env-var"]
    opened["env-var"] = variable | {"properties": variable["properties"] | {"value": {}}}
    values = {name: yaml.safe_load((CHART / "charts" / name / "values.yaml").read_text()) for name in SUBCHARTS}
    values |= {"": yaml.safe_load((CHART / "values.yaml").read_text())}
    defaults = {key: values.get(key, {}) | part for key, part in values[""].items() if isinstance(part, dict)}
    keys = book(umbrella, known, words["lists"], words["maps"], needed(defaults))
    parts = {
        CHART / "charts" / name / "values.schema.json": text(undescribed(alone(name, known))) for name in SUBCHARTS
    }
    return parts | {
        CHART / "charts" / "common" / "values.yaml": shared(values[""]),
        CHART / "values.schema.json": text(undescribed(bundle(loose(umbrella, known), opened))),
        CHART / "values.strict.schema.json": text(plain(strict)),
        CHART / "files" / "keys.json": text(keys),
        CHART / "files" / "where.json": text(
            {"where": where(keys["keys"], keys["shared"]), "aliases": words["aliases"], "notes": words["notes"]}
        ),
        CHART / "README.md": readme.chart(strict, known, values),
    }


def main() -> int:
    """Write or check all generated files."""
    parser = argparse.ArgumentParser(description="Write what is made of the charts' annotated values.")
    parser.add_argument("--check", action="store_true", help="change nothing; end 1 when a file is not current")
    check = parser.parse_args().check
    wanted = files()
    stale = [path for path, content in wanted.items() if not path.exists() or path.read_text() != content]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'not current' if check else 'written'}")
        if not check:
            path.write_text(wanted[path])
    if check and stale:
        print("run hack/schemas/generate and commit what it writes", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
