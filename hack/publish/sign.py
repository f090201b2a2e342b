"""Sign what was published, and attest where it comes from and what the images hold; the release workflow runs it.

    python -m hack.publish.sign

Reads build/publish/release.json. cosign signs keyless, with the identity of the workflow; SIGNING_OPTIONS are further
options for it, such as `--key FILE`. syft lists what each image holds, as SPDX. All of it lies beside the artifacts in
the registry. Ends with 2 and one line if something is wrong.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hack.publish import remote
from hack.publish.__main__ import OUT, say
from hack.publish.layout import Json
from hack.publish.programs import ROOT, PublishError, explain, run


def main() -> int:
    """Sign and attest; returns the exit code."""
    try:
        sign_all(OUT / "release.json")
    except PublishError as error:
        print(f"sign: {error}", file=sys.stderr)
        return 2
    return 0


def sign_all(path: Path) -> None:
    """Sign and attest every artifact of a release. Raises PublishError."""
    if not path.exists():
        raise PublishError(f"{path} is missing: run make publish first")
    release = json.loads(path.read_text())
    programs = Path(run(ROOT / "hack" / "signing" / "build").decode().strip())
    options = os.environ.get("SIGNING_OPTIONS", "").split()
    host = release["artifacts"][0]["reference"].partition("/")[0]
    with tempfile.TemporaryDirectory() as work, remote.login(host) as registry:

        def cosign(*words: str | Path) -> None:
            try:
                run(programs / "cosign", words[0], "--yes", *options, *words[1:], env=registry.env)
            except PublishError as error:
                raise explain(host, error) from None

        where_from = Path(work) / "provenance.json"
        where_from.write_text(json.dumps(provenance(release, os.environ)))
        for artifact in release["artifacts"]:
            reference = artifact["reference"]
            cosign("sign", reference)
            cosign("attest", "--type", "slsaprovenance1", "--predicate", where_from, reference)
            if artifact["image"]:
                contents = Path(work) / "sbom.spdx.json"
                scan = ("scan", "-q", f"registry:{reference}", "-o", f"spdx-json={contents}")
                run(programs / "syft", *scan, env=registry.env)
                cosign("attest", "--type", "spdxjson", "--predicate", contents, reference)
            say(f"signed {reference}")


def provenance(release: Json, env: Mapping[str, str]) -> Json:
    """Return the predicate of SLSA provenance 1 for a release that a workflow of GitHub made."""
    server, repository = env.get("GITHUB_SERVER_URL", ""), env.get("GITHUB_REPOSITORY", "")
    source = f"{server}/{repository}"
    run_id = f"{source}/actions/runs/{env.get('GITHUB_RUN_ID', '')}/attempts/{env.get('GITHUB_RUN_ATTEMPT', '')}"
    workflow = env.get("GITHUB_WORKFLOW_REF", "").partition("@")[0].removeprefix(f"{repository}/")
    return {
        "buildDefinition": {
            "buildType": "https://actions.github.io/buildtypes/workflow/v1",
            "externalParameters": {
                "workflow": {"ref": env.get("GITHUB_REF", ""), "repository": source, "path": workflow},
                "version": release["version"],
            },
            "resolvedDependencies": [
                {"uri": f"git+{source}@{env.get('GITHUB_REF', '')}", "digest": {"gitCommit": release["commit"]}}
            ],
        },
        "runDetails": {
            "builder": {"id": f"{server}/actions/runner/{env.get('RUNNER_ENVIRONMENT', 'local')}"},
            "metadata": {"invocationId": run_id},
        },
    }


if __name__ == "__main__":
    sys.exit(main())
