"""Write deploy/argocd/health-checks.yaml, a patch of Argo CD's argocd-cm, from the Lua beside it.

scripts/schemas/health_checks.py [--check]      --check: change nothing, fail when it is not current
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "argocd"
HEAD = """\
# Health of the kinds that train, for Argo CD. Made by scripts/schemas/health_checks.py of health.lua: change that.
#   kubectl patch configmap argocd-cm -n argocd --type merge --patch-file deploy/argocd/health-checks.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  labels: {app.kubernetes.io/part-of: argocd}
data:
"""


def kinds() -> list[str]:
    """Return group/Kind of each check, in order."""
    scripts = (FOLDER / "resource_customizations").glob("*/*/health.lua")
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in scripts)


def patch() -> str:
    """Return the patch: the one script under a key for each kind."""
    lines = (FOLDER / "health.lua").read_text().splitlines()
    keys = [f"  resource.customizations.health.{kind.replace('/', '_')}" for kind in kinds()]
    script = "".join(f"    {line}".rstrip() + "\n" for line in lines)
    return f"{HEAD}{keys[0]}: &health |\n{script}" + "".join(f"{key}: *health\n" for key in keys[1:])


def main() -> int:
    """Write the file, or compare it."""
    target = FOLDER / "health-checks.yaml"
    if "--check" not in sys.argv[1:]:
        target.write_text(patch())
        return 0
    if target.read_text() == patch():
        return 0
    print(f"{target} is not current: run scripts/schemas/health_checks.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
