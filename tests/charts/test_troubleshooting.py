"""Every entry of docs/troubleshooting.md is provoked: on the cluster by the case that it names, or by its words."""

import re

import pytest

from tests.e2e import test_kueue_dataset, test_misconfigurations, test_what_clusters_say
from tests.util.why_messages import FURTHER, IMAGES, NOT_CREATED, NOT_PLACED, NOT_STARTED, PENDING

from . import helm

TEXT = (helm.ROOT / "docs" / "troubleshooting.md").read_text()
ROWS = re.findall(r"^\| `(.+)` \| (.+) \| (.+) \|$", TEXT, re.M)
CASES = test_misconfigurations.CASES | test_what_clusters_say.CASES | test_what_clusters_say.RULED
CASES |= test_kueue_dataset.CASES
ABSENT = {"operator absent", "scheduler", "incomplete dataset: no manifest"}  # nothing fails: a list names them
SAID = {said for table in (NOT_CREATED, NOT_PLACED, NOT_STARTED, PENDING) for said, _ in table.values()}
SAID |= {f"{reason}: {said}" for reason, said, _ in IMAGES.values()} | FURTHER.keys()


@pytest.mark.parametrize(("said", "answer", "tried"), ROWS, ids=range(len(ROWS)))
def test_every_entry_is_provoked(said, answer, tried):
    if tried == "words":
        assert said in SAID
    else:
        assert CASES[tried].cause in said
        assert CASES[tried].remedy in answer


def test_every_case_of_the_cluster_has_its_entry():
    assert CASES.keys() - ABSENT == {tried for _, _, tried in ROWS} - {"words"}
    for name in ABSENT:
        assert CASES[name].cause in TEXT
        assert CASES[name].remedy in TEXT
