"""The images, and names in pods: what probe pods have shown, else what nodes have."""

from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Check, Diagnosis, check, several
from trainyard.cluster.checks.probes import PULLING, Shown
from trainyard.cluster.demand import Demand, images
from trainyard.cluster.remedies import remedy


def examine(shown: Shown, demand: Demand, nodes: list[dict]) -> Check:
    """Check the images: by pods that were started with them, else by what nodes have."""
    wrong, sound, unproven = [], [], list(shown.unproven)
    for one in shown.starts:
        if one.logs:
            answer = "see that node's kubelet: its certificate (kubectl get csr) and whether port 10250 is reachable"
            seen = f"the API server cannot read logs of pods ({one.logs}): follow, logs, fetch and send would fail"
            wrong.append(Diagnosis(WARNING, "pods/log", seen, answer))
        if one.named and one.said:
            answer = remedy(one.said) or "see kubectl describe node, and try the image there by hand"
            wrong.append(Diagnosis(ERROR, f"image {one.image}", f"it does not start: {one.said}", answer))
        elif one.said and not one.unproven:
            answer = remedy(one.said) or "see the kubelet and the network plugin of its node: kubectl describe node"
            if not any(text in one.said for text in PULLING):
                wrong.append(Diagnosis(ERROR, "pods", f"a probe pod does not start: {one.said}", answer))
        elif one.named and one.unproven:
            unproven.append(f"image {one.image}: {one.unproven}")
        elif one.named:
            sound.append(f"{one.image} starts")
    if not shown.starts or not any(one.named for one in shown.starts):
        names = [] if demand.placeholder else images(demand)
        held = {
            text
            for node in nodes
            for one in node.get("status", {}).get("images") or []
            for text in one.get("names") or []
        }
        here = [text for text in names if text in held]
        sound += [f"{several(here)}: on a node already"] if here else []
        reason = shown.why or "name one with -f or --image"
        if set(names) - set(here) or not names:
            unproven.append(f"whether nodes pull the image: {reason}")
    return check("images", sound, wrong, unproven)


def resolution(shown: Shown) -> tuple[str, tuple[Diagnosis, ...]]:
    """Return what probe pods have shown of the name server: a sound line, and what is wrong."""
    told = [one.names for one in shown.starts if one.names in ("yes", "no")]
    if "yes" in told:
        return "names resolve in pods", ()
    if "no" in told:
        seen = "kubernetes.default.svc does not resolve in a pod"
        answer = (
            "see the name server: kubectl -n kube-system get pods -l k8s-app=kube-dns; and policies of the namespace"
        )
        return "", (Diagnosis(ERROR, "dns", seen, answer),)
    return "", ()
