"""Weights as other programs save them: found, stripped of wrappers and said; what is none is named for what it is."""

import argparse
import copy
import datetime
import importlib
import logging
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainyard.core.exits import UserError
from trainyard.models import described, factory

State = dict[str, Tensor]


def net(classes: int = 7) -> nn.Module:
    return factory.create("little_models:net", classes)


def state(seed: int = 1) -> State:
    torch.manual_seed(seed)
    return {name: torch.rand_like(value.float()) for name, value in net().state_dict().items()}


def under(prefix: str, seed: int = 1) -> State:
    return OrderedDict((prefix + name, value) for name, value in state(seed).items())


def saved(path: Path, content: Any, **how: Any) -> Path:
    torch.save(content, path, **how)
    return path


def loaded(path: Path, caplog: pytest.LogCaptureFixture, seed: int = 1, **how: Any) -> str:
    """Load weights into a model with other classes; its body must be those of the seed. What was logged."""
    caplog.clear()
    model = net(3)
    with caplog.at_level(logging.INFO, "trainyard"):
        factory.load_pretrained(model, path, **how)
    for name, value in state(seed).items():
        if not name.startswith("fc."):
            assert torch.equal(model.state_dict()[name].float(), value.to(model.state_dict()[name].dtype).float()), name
    assert "\n" not in caplog.messages[0]
    return "\n".join(caplog.messages)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("module.", "'module.'"), ("_orig_mod.", "'_orig_mod.'"), ("module._orig_mod.", "'module.' and '_orig_mod.'"),
        ("_orig_mod.module.", "'module.' and '_orig_mod.'"), ("model.", "'model.'"), ("net.", "'net.'"),
        ("backbone.", "'backbone.'"), ("system.student.encoder.", "'system.student.encoder.'"),
    ],
)  # fmt: skip
def test_prefixes_of_wrappers_are_removed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str, said: str, suffix: str
) -> None:
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save(under(prefix), path)
    else:
        save_file(under(prefix), path)
    lines = loaded(path, caplog)
    assert f"{path}, taken: the file itself, its names without {said}\n" in lines
    assert "these weights have 7 of them" in lines, "the head was found, too"


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(
    ("name", "renamed", "arguments"),
    [
        ("vision_transformer.VisionTransformer", ((r"\.mlp\.0\.", ".mlp.linear_1."), (r"\.mlp\.3\.", ".mlp.linear_2.")),
         {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}),
        ("densenet.DenseNet", ((r"(denselayer\d\.(?:norm|conv))([12])\.", r"\1.\2."),),
         {"growth_rate": 4, "block_config": (2, 1), "num_init_features": 4, "bn_size": 1}),
    ],
)  # fmt: skip
def test_names_that_torchvisions_published_weights_still_have(
    tmp_path: Path, prefix: str, name: str, renamed: tuple[tuple[str, str], ...], arguments: dict[str, Any]
) -> None:
    """torchvision renames them as it loads them: of vit_b_16 (its pull request 6053), and of all its DenseNets."""
    module, _, made = name.partition(".")
    make = getattr(importlib.import_module(f"torchvision.models.{module}"), made)
    models = [make(num_classes=3, **arguments) for _ in range(2)]
    wanted = models[0].state_dict()
    kept = {}
    for key, value in wanted.items():
        for today, former in renamed:
            key = re.sub(today, former, key)  # noqa: PLW2901
        kept[prefix + key] = value
    assert kept.keys() != wanted.keys() != {key.removeprefix(prefix) for key in kept}
    factory.load_pretrained(models[1], saved(tmp_path / "w.pth", kept))
    assert all(torch.equal(value, wanted[key]) for key, value in models[1].state_dict().items())


def test_a_head_that_fits_is_kept_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trainyard"):
        factory.load_pretrained(model := net(), saved(tmp_path / "w.pth", state()))
    assert "the head (fc) is kept: its 7 outputs count as the data's classes in their order" in caplog.text
    assert torch.equal(model.state_dict()["fc.weight"], state()["fc.weight"])


def test_a_model_that_asks_for_the_version_of_a_state_dict_is_loaded_without(tmp_path: Path) -> None:
    """As a resumed run and an evaluation do: neither a checkpoint nor safetensors keep one."""
    models = [factory.create("mnasnet0_5", 3) for _ in range(2)]
    wanted = models[0].state_dict()
    factory.load_pretrained(models[1], saved(tmp_path / "w.pth", dict(wanted)))
    assert all(torch.equal(value, wanted[key]) for key, value in models[1].state_dict().items())
    copy.deepcopy(models[1]).load_state_dict(dict(wanted))


def test_wrappers_within_names_are_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As FSDP and torch.compile leave them where they wrap parts of a model."""
    inside = {name.replace("body.", "body._fsdp_wrapped_module._orig_mod."): value for name, value in state().items()}
    assert "without '_fsdp_wrapped_module.' and '_orig_mod.'" in loaded(saved(tmp_path / "w.pth", inside), caplog)


def test_what_lies_outside_of_the_prefix_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = {**under("backbone."), **{f"neck.{n}": torch.ones(2) for n in range(5)}}
    assert "left out: neck.0, neck.1, neck.2 and 2 more" in loaded(saved(tmp_path / "w.pth", parts), caplog)


def test_an_averaged_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    average = torch.optim.swa_utils.AveragedModel(net())
    average.load_state_dict({**under("module."), "n_averaged": torch.tensor(5)})
    lines = loaded(saved(tmp_path / "w.pth", average.state_dict()), caplog)
    assert "the file itself (an average of the weights), its names without 'module.'; left out: n_averaged" in lines


@pytest.mark.parametrize("key", ["net", "model", "state_dict", "model_state_dict", "model_ema", "ema", "weights"])
def test_state_dicts_within_other_things(tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str) -> None:
    sgd = torch.optim.SGD(net().parameters(), 0.1, momentum=0.9)
    lion = {"exp_avg": state(2)}  # kept by name, and no average of the weights
    rest = {
        "optimizer": sgd.state_dict(),
        "optim_head": lion,
        "epoch": 3,
        "best": torch.tensor(70.0),
        "loss": {"weight": torch.ones(7)},
    }
    for at, content in ((f"['{key}']", state()), (f"['{key}']['module']", {"module": state(), "decay": 0.9})):
        lines = loaded(saved(tmp_path / "w.pth", {key: content, **rest}), caplog)
        assert f"taken: {at}{' (an average of the weights)' if 'ema' in key else ''}\n" in lines


def test_the_weights_of_a_student_and_those_of_half_the_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A student beside a teacher of another size, and an average beside the weights; metadata in safetensors."""
    other = {f"teacher.{name}": torch.ones(2) for name in state()}
    path = saved(tmp_path / "w.pth", {"model": {**under("student."), **other}})
    assert "taken: ['model'], its names without 'student.'; left out: teacher." in loaded(path, caplog)
    both = saved(
        tmp_path / "ema.pth", {**under("model.", 1), **under("ema.module.", 2), "ema.n_averaged": torch.ones(1)}
    )
    lines = loaded(both, caplog, seed=2)
    assert "the file itself (an average of the weights), its names without 'ema.module.'" in lines
    assert "not taken: the file itself, its names without 'model.', which fits too" in lines
    save_file({n: v.bfloat16().float() for n, v in state().items()}, exact := tmp_path / "e.safetensors")
    save_file({n: v.bfloat16() for n, v in state().items()}, half := tmp_path / "h.safetensors", {"format": "pt"})
    models = [net(3), net(3)]
    for model, file in zip(models, (exact, half), strict=True):
        factory.load_pretrained(model, file)
        assert {value.dtype for value in model.parameters()} == {torch.float32}
    pairs = zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for (name, one), two in pairs if not name.startswith("fc."))


def test_lightnings_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = {"state_dict": {**under("model."), "criterion.weight": torch.ones(7)}, "hyper_parameters": {"lr": 0.1}}
    lines = loaded(saved(tmp_path / "last.ckpt", content), caplog)
    assert "taken: ['state_dict'], its names without 'model.'; left out: criterion.weight" in lines


@pytest.mark.parametrize(
    ("raw", "average"),
    [("state_dict", "state_dict_ema"), ("model", "model_ema"), ("params", "params_ema"), ("model", "ema")],
)
def test_the_average_is_taken_and_the_other_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, raw: str, average: str
) -> None:
    content = {raw: state(1), average: {**under("module.", 2), "n_averaged": torch.tensor(5)}}
    lines = loaded(saved(tmp_path / "w.pth", content), caplog, seed=2)
    assert f"taken: ['{average}'] (an average of the weights), its names without 'module.'; left out: n_averag" in lines
    assert f"not taken: ['{raw}'], which fits too (see docs/fine-tune.md)" in lines
    assert "not taken" not in loaded(saved(tmp_path / "w.pth", {raw: (one := state()), "weights": one}), caplog)


@pytest.mark.parametrize("legacy", [False, True])
def test_arguments_of_reference_scripts_are_no_obstacle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, legacy: bool
) -> None:
    """torchvision's and timm's scripts save a Namespace, others paths, numbers of numpy, times."""
    args = argparse.Namespace(data=Path("/data"), since=datetime.datetime(2026, 1, 1), best=np.float64(70), kinds={"a"})
    content = {"model": state(), "args": args, "metric": np.float32(70.5), "random": np.arange(3), "epoch": 3}
    path = saved(tmp_path / "w.pth", content, _use_new_zipfile_serialization=not legacy)
    assert "taken: ['model']" in loaded(path, caplog)
    assert "argparse.Namespace" not in str(torch.serialization.get_safe_globals())


class Malicious:
    """What runs code where it is unpickled as pickle does it."""

    def __init__(self, trace: Path, function: Any = exec) -> None:
        self.call = (function, (f"open({str(trace)!r}, 'w')",))

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_of_a_file_is_run(tmp_path: Path, caplog: pytest.LogCaptureFixture, legacy: bool) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(OSError, match="Is a directory"):
        pickle.loads(pickle.dumps(Malicious(tmp_path)))
    content = {"model": state(), "args": argparse.Namespace(lr=Malicious(trace))}
    loaded(saved(tmp_path / "w.pth", content, _use_new_zipfile_serialization=not legacy), caplog)
    assert not trace.exists()


def test_several_that_fit_are_refused_with_the_line_that_chooses(tmp_path: Path) -> None:
    """As of contrastive training: neither is an average. The line that the message has makes a file that loads."""
    both = {"state_dict": {**under("module.encoder_q.", 1), **under("module.encoder_k.", 2)}}
    path = saved(tmp_path / "w.pth", both)
    with pytest.raises(UserError, match=r"holds 2 state dicts that fit") as refused:
        factory.load_pretrained(net(3), path)
    message = str(refused.value)
    assert "'module.encoder_q.'; ['state_dict'], its names without 'module.encoder_k.'. Save the one that" in message
    followed(message, tmp_path)


def followed(message: str, folder: Path) -> None:
    """Do what a message says, and load the result."""
    code = message.partition('python -c "')[2].partition('"`')[0]
    exec(code.replace("'weights.pth'", repr(str(folder / "weights.pth"))), {})
    factory.load_pretrained(net(3), folder / "weights.pth")


def test_whole_models_and_programs_are_refused_with_the_line_that_saves_their_state(tmp_path: Path) -> None:
    model = net()
    arrays = {name: value.numpy() for name, value in state().items()}
    script = tmp_path / "scripted.pt"
    torch.jit.trace(model.eval(), torch.ones(1, 3, 16, 16)).save(str(script))  # type: ignore[no-untyped-call]
    for path, said in (
        (saved(tmp_path / "whole.pth", model), r"holds a whole pickled little_models\.Net: .*save its state dict: "),
        (saved(tmp_path / "in.pth", {"epoch": 1, "model": model}), r"whole pickled little_models\.Net under 'model'"),
        (script, r"is a TorchScript program; save its state dict: `python"),
        (saved(tmp_path / "arrays.pth", arrays), r"arrays of NumPy, not tensors; .*save tensors: `python"),
        (saved(tmp_path / "inner.pth", {"net": arrays}), r"arrays of NumPy, not tensors; .*save tensors: `python"),
    ):
        with pytest.raises(UserError, match=said) as refused:
            factory.load_pretrained(net(3), path)
        assert "weights_only=True" not in str(refused.value)
        followed(str(refused.value), tmp_path)


def test_an_index_of_weights_in_several_files_is_refused_with_the_line_that_joins_them(tmp_path: Path) -> None:
    names = list(whole := state())
    for number, part in enumerate((names[:5], names[5:]), 1):
        save_file({name: whole[name] for name in part}, tmp_path / f"model-{number:05}-of-00002.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{\n "metadata": {},\n "weight_map": {}\n}')
    with pytest.raises(UserError, match="is the index of weights that lie in several files; join them: `py") as refused:
        factory.load_pretrained(net(3), path)
    followed(str(refused.value), tmp_path)
    with pytest.raises(UserError, match="is the index of weights that lie in several files"):
        factory.load_pretrained(net(3), tmp_path)
    path.rename(path := tmp_path / "config.json")
    with pytest.raises(UserError, match="is a JSON text, not a file of weights; give the path of the file beside it"):
        factory.load_pretrained(net(3), path)


def test_a_distributed_checkpoint_is_refused_with_the_line_that_joins_it(tmp_path: Path) -> None:
    """As FSDP writes one; the line is torch's own, of its module `format_utils`."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import format_utils

    checkpoint.save({"model": (whole := state())}, checkpoint_id=tmp_path / "step", no_dist=True)
    with pytest.raises(UserError, match=r"is a checkpoint of torch\.distributed\.checkpoint; join it: `") as refused:
        factory.load_pretrained(net(3), tmp_path / "step")
    line = str(refused.value).partition("`")[2].partition("`")[0].split()
    assert line[:4] == ["python", "-m", format_utils.__name__, "dcp_to_torch"]
    format_utils.dcp_to_torch_save(line[4], tmp_path / line[5])
    factory.load_pretrained(model := net(3), tmp_path / line[5])
    assert torch.equal(model.state_dict()["body.0.weight"], whole["body.0.weight"])


def test_arrays_of_jax_are_named(tmp_path: Path) -> None:
    """As of Google's own vision transformers."""
    np.savez(tmp_path / "ViT-B_16.npz", **{name: value.numpy() for name, value in state().items()})
    with pytest.raises(UserError, match=r"holds arrays of NumPy \(\.npz\), as JAX saves weights; "):
        factory.load_pretrained(net(3), tmp_path / "ViT-B_16.npz")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 46830571\n", "is a Git LFS pointer"),
        (b"\n<!DOCTYPE html>\n<html><head>", r"is a page \(HTML or XML\), not a file of weights: its address led to"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", r"is a page \(HTML or XML\)"),
        (b"", "is empty; copy or download it again"),
        (b"\x1f\x8b\x08\x00abc", "is compressed by gzip; unpack it"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, as Keras saves weights"),
        (b"PK\x03\x04abc", "is cut short or damaged; copy or download it again, and compare its size"),
        (b"no weights", "is neither a file of torch.save nor of safetensors, or it is damaged"),
        (b"\x20\0\0\0\0\0\0\0{", r"cannot be read \(.*\); copy or download it again"),
    ],
)
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_files_of_other_kinds_are_named_for_what_they_are(
    tmp_path: Path, suffix: str, content: bytes, said: str
) -> None:
    path = tmp_path / f"weights.{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^model\.pretrained = '{path}' {said}") as refused:
        factory.load_pretrained(net(), path)
    assert "\x1b" not in str(refused.value)
    assert "weights_only" not in str(refused.value)


def test_what_is_no_state_dict_is_shown(tmp_path: Path) -> None:
    for content, said in (([1, 2], "is no state dict but a list"), ({"a": 1}, "is no state dict but a dict of 'a'")):
        with pytest.raises(UserError, match=said):
            factory.load_pretrained(net(), saved(tmp_path / "w.pth", content))
    with pytest.raises(UserError, match=r"is a folder without model\.safetensors and model\.pth"):
        factory.load_pretrained(net(), tmp_path)


def refused(tmp_path: Path, model: nn.Module, content: Any, **how: Any) -> str:
    with pytest.raises(UserError) as error:
        factory.load_pretrained(model, saved(tmp_path / "w.pth", content), **how)
    return str(error.value)


def test_unknown_names_come_before_missing_ones_with_the_reason(tmp_path: Path) -> None:
    import timm

    vit = timm.create_model("test_vit", pretrained=False)
    content = {"model": vit.state_dict(), "accuracy": torch.ones(1)}
    theirs = refused(tmp_path, factory.create("torchvision:squeezenet1_0", 3), content)
    assert "does not fit SqueezeNet (['model']): " in theirs
    assert theirs.index("names are not the model's (cls_token, ") < theirs.index("names are missing in it (features.0")
    assert theirs.endswith("these are names of timm's models: set model.name to timm:NAME")
    large = {**state(), "body.9.weight": torch.ones(3)}
    assert refused(tmp_path, net(), large).endswith(
        "does not fit Net: 1 of its 15 names are not the model's (body.9.weight); it is of a larger model than "
        "model.name says, or of one with more parts"
    )
    small = {name: value for name, value in state().items() if not name.startswith("body.3")}
    assert "(body.3.weight); it is a part of the model, or of a smaller one" in refused(tmp_path, net(), small)
    other = {name.replace("body", "trunk"): value for name, value in state().items()}
    said = refused(tmp_path, net(), other)
    assert "12 of its 14 names are not the model's (trunk.0.weight, trunk.1.weight, trunk.1.bias and 9 more)" in said
    assert said.endswith("it is of another model than model.name says, or of one with other settings")
    wide = {**state(), "body.0.weight": torch.ones(9, 3, 3, 3)}
    assert "another size (body.0.weight: 9x3x3x3 in place of 8x3x3x3)" in refused(tmp_path, net(), wide)


def test_a_model_that_is_opened_takes_its_names_without_prefix() -> None:
    """As in a folder of timm's form that another program wrote."""
    found = described.Description(
        "little_models:net", list("abcdefg"), list("abcdefg"), 16, 16, 16, [0.5] * 3, [0.5] * 3, "bilinear", "fp32",
        None, "auto", 8,
    )  # fmt: skip
    model = described.rebuild(found, under("module."))
    assert torch.equal(model.state_dict()["fc.weight"], state()["fc.weight"])
    with pytest.raises(
        UserError, match=r"do not fit little_models:net with 7 classes.*names are missing in it \(fc\.b"
    ):
        described.rebuild(found, {name: value for name, value in under("module.").items() if name != "module.fc.bias"})
