"""Pretrained weights: found by name, fetched from a real server once, checked, and loaded with their preprocessing."""

import errno
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Trainer
from published import weights as published_weights
from safetensors.torch import save_file

from tests.fakes.files import FileServer, running
from trainyard import config
from trainyard.config import Config
from trainyard.core.exits import Exit, ExitError, InputError, UserError
from trainyard.core.storage import storage
from trainyard.models import factory, weights
from trainyard.prepare import fetch_weights as fetched
from trainyard.prepare.command import main as prepare

RESNET = "models/resnet18-f37072fd.pth"
NET = "trainyard.models.small:resnet10"
SOME = {"weight": torch.zeros(3)}  # weights that nothing is built from
HUB = "timm/test_vit.r160_in1k/resolve/main/model.safetensors"


def build(run: Config, classes: int) -> torch.nn.Module:
    return factory.build(run.model, run.data, run.seed, classes, dtype=torch.float32, total=None)


def fetch(run: Config) -> Path | None:
    return fetched.fetch(run.model, run.data)


def run_of(tmp_path: Path, server: FileServer | None = None, **over: Any) -> Config:
    model = {"weights_mirror": server.url} if server else {}
    base = {"data": {"dir": str(tmp_path / "data" / "pets")}, "epochs": 1, "batch": {"global": 8}}
    sections: dict[str, dict[str, Any]] = {"model": model}
    for key, value in over.items():
        section, _, name = key.partition("__")
        sections.setdefault(section, {})[name] = value
    return config.build(base, sections)


@functools.cache
def resnet10() -> dict[str, torch.Tensor]:
    """Weights that NET takes."""
    torch.manual_seed(11)
    return factory.create(NET, 9).state_dict()


def with_hash(folder: Path, name: str, state: dict[str, torch.Tensor]) -> str:
    """Save a state dict under a name that ends in the first digits of its hash; returns the name."""
    torch.save(state, folder / "new.pth")
    digest = storage.hash_file(folder / "new.pth")
    (folder / "new.pth").rename(folder / f"{name}-{digest[:8]}.pth")
    return f"{name}-{digest[:8]}.pth"


def test_an_address_is_fetched_once_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the digits in its name; a second time nothing is asked of the server, and trainers ask nothing at all."""
    served = tmp_path / "served"
    served.mkdir()
    name = with_hash(served, "birds", resnet10())
    with running(served) as server:
        run = run_of(tmp_path, model__name=NET, model__pretrained=f"{server.url}/{name}?version=2")
        with pytest.raises(InputError, match=r"not in .*/data/weights/birds-.*fetch them once with `trainyard pre"):
            weights.apply_preprocessing(run)
        assert not server.requests, "what trains asks no server"
        file = fetch(run)
        said = rf"only 8 digits of its SHA-256 were known, and http .* {storage.hash_file(served / name)}"
        assert re.search(said, capsys.readouterr().err)
        asked = len(server.requests)
        assert fetch(run) == file == weights.file_of(run.model, run.data)
        assert len(server.requests) == asked > 0
    assert file
    assert file.parent.parent == tmp_path / "data" / "weights"
    told = json.loads((file.parent / "config.json").read_text())
    assert told["trainyard"]["sha256"] == storage.hash_file(file) == storage.hash_file(served / name)
    assert "version=2" not in json.dumps(told)
    assert weights.apply_preprocessing(run) == run, "nothing is known of its preprocessing"
    for key, value in build(run, 9).state_dict().items():
        assert torch.equal(value, resnet10()[key]), key


def test_storage_that_fails_for_a_while_costs_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it fails for longer, the code is one that is retried, not that of wrong settings."""
    (served := tmp_path / "served").mkdir()
    name = with_hash(served, "birds", SOME)
    real, faults = Path.rename, [errno.EIO, errno.ESTALE]

    def rename(path: Path, target: Path) -> Path:
        if faults and target.name == "model.pth":
            raise OSError(faults.pop(), "failed")
        return real(path, target)

    with running(served) as server:
        run = run_of(tmp_path, model__name="resnet18", model__pretrained=f"{server.url}/{name}")
        monkeypatch.setattr(Path, "rename", rename)
        file = fetch(run)
        assert file
        assert (storage.hash_file(file), faults) == (storage.hash_file(served / name), [])
        shutil.rmtree(file.parent)
        monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.2")
        faults += [errno.EIO] * 1000
        with pytest.raises(ExitError, match="the storage does not answer") as caught:
            fetch(run)
    assert caught.value.code == Exit.STORAGE
    assert not list(file.parent.glob("model*"))


@pytest.mark.parametrize("how", ["name", "key"])
def test_another_content_is_refused_and_not_kept(tmp_path: Path, how: str) -> None:
    served = tmp_path / "served"
    served.mkdir()
    name = with_hash(served, "birds", SOME)
    other, key = ("birds-00000000.pth", {}) if how == "name" else (name, {"model__pretrained_sha256": "0" * 64})
    if how == "name":
        (served / name).rename(served / other)
    with running(served) as server:
        run = run_of(tmp_path, model__name="resnet18", model__pretrained=f"{server.url}/{other}", **key)
        with pytest.raises(InputError, match=r"birds-.*has SHA-256 [0-9a-f]{64}, and 0{8,64} was expected"):
            fetch(run)
        with pytest.raises(InputError):
            weights.file_of(run.model, run.data)
    assert not list(weights.folder_of(run.model, run.data).glob("model*"))


def flip_a_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])


def test_a_bit_that_has_changed_on_the_claim_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is trained from it; and the command that fetches weights fetches them again."""
    served = tmp_path / "served"
    served.mkdir()
    name = with_hash(served, "birds", resnet10())
    right = storage.hash_file(served / name)
    with running(served) as server:
        run = run_of(tmp_path, model__name=NET, model__pretrained=f"{server.url}/{name}")
        file = fetch(run)
        assert file
        flip_a_bit(file)
        wrong = storage.hash_file(file)
        said = rf"{file} has SHA-256 {wrong[:12]}\.\.\., and config.json says {right[:12]}\.\.\.: .*fetch it again with"
        with pytest.raises(InputError, match=said):
            build(run, 9)
        assert fetch(run) == file
        assert re.search(f"{said}.*They are fetched again", capsys.readouterr().err)
    assert storage.hash_file(file) == right
    build(run, 9)


def test_a_bit_that_has_changed_in_what_weights_say_of_images_is_found(tmp_path: Path) -> None:
    """Mean and deviation are in no other file: training from others would be another training, without a word."""
    run = run_of(tmp_path, model__name="resnet18", model__pretrained="IMAGENET1K_V1")
    (served := tmp_path / "served" / "models").mkdir(parents=True)
    torch.save(SOME, served / "resnet18.pth")
    kept = {"input_size": [3, 96, 96], "interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.4] * 3}
    origin = {"architecture": "resnet18", "pretrained_cfg": kept, "trainyard": {"resize": 110}}
    with running(tmp_path / "served") as server, pytest.MonkeyPatch.context() as patch:
        where = fetched.Origin(f"{server.url}/models/resnet18.pth", storage.hash_file(served / "resnet18.pth"), origin)
        patch.setattr(fetched, "find", lambda model: where)
        file = fetch(run)
    assert file
    path = file.parent / "config.json"
    data, sound = path.read_bytes(), weights.apply_preprocessing(run)
    assert (sound.data.mean, sound.data.val_sizes) == ([0.5] * 3, (96, 110))
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1 << index % 7]) + data[index + 1 :])
        try:
            found = weights.apply_preprocessing(run)
        except InputError:
            continue
        assert found == sound, path.read_bytes()


@pytest.mark.parametrize("known", ["SHA256SUMS", "model.pretrained_sha256"])
def test_weights_of_a_path_are_compared_with_what_is_known_of_them(tmp_path: Path, known: str) -> None:
    file, key = tmp_path / "model.pth", {}
    torch.save(resnet10(), file)
    if known == "SHA256SUMS":
        (tmp_path / known).write_text(f"{storage.hash_file(file)}  {file.name}\n")
    else:
        key = {"model__pretrained_sha256": storage.hash_file(file)}
    run = run_of(tmp_path, model__name=NET, model__pretrained=str(tmp_path), **key)
    build(run, 9)
    flip_a_bit(file)
    with pytest.raises(InputError, match=rf"and {known} says [0-9a-f]{{12}}\.\.\.: .*copy it again"):
        build(run, 9)


def test_a_byte_of_the_hashes_that_has_changed_is_said(tmp_path: Path) -> None:
    file = tmp_path / "model.pth"
    torch.save(resnet10(), file)
    line = f"{storage.hash_file(file)}  {file.name}\n".encode()
    (tmp_path / "SHA256SUMS").write_bytes(line[:20] + bytes([line[20] | 0x80]) + line[21:])
    with pytest.raises(InputError, match="SHA256SUMS says"):
        build(run_of(tmp_path, model__name=NET, model__pretrained=str(tmp_path)), 9)


@pytest.mark.parametrize(
    "own", [None, [], "x", 7, {}, {"file": 5}, {"file": None, "sha256": []}, {"file": ""}], ids=str
)
def test_a_description_of_fetched_weights_that_is_none_means_that_they_are_not_here(tmp_path: Path, own: Any) -> None:
    run = run_of(tmp_path, model__name="resnet18", model__pretrained="IMAGENET1K_V1")
    folder = weights.folder_of(run.model, run.data)
    folder.mkdir(parents=True)
    storage.write_json(folder / "config.json", {"trainyard": own})
    for look in (lambda: weights.file_of(run.model, run.data), lambda: weights.apply_preprocessing(run)):
        with pytest.raises(InputError, match="these weights are not in"):
            look()


def test_without_weights_a_run_keeps_the_preprocessing_of_its_checkpoint(tmp_path: Path) -> None:
    over: dict[str, Any] = {"model__name": "vit_b_16", "model__pretrained": "IMAGENET1K_SWAG_E2E_V1"}
    data = {"image_size": 384, "val_image_size": 384, "val_resize": 384, "mean": [0.5] * 3, "std": [0.4] * 3}
    recorded = {"data": {**data, "size_ramp": 0.3}, "augment": {"interpolation": "bicubic"}}
    found = weights.apply_preprocessing(run_of(tmp_path, **over), lambda: recorded)
    assert {key: getattr(found.data, key) for key in data} == data
    assert found.augment.interpolation == "bicubic"
    held = weights.apply_preprocessing(run_of(tmp_path, **over, data__image_size=192), lambda: recorded)
    assert (held.data.image_size, held.data.val_sizes, held.data.mean) == (192, (192, 219), [0.5] * 3)
    with pytest.raises(InputError, match="these weights are not in"):
        weights.apply_preprocessing(run_of(tmp_path, **over), dict)


def test_an_address_without_any_hash_needs_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = tmp_path / "served"
    served.mkdir()
    torch.save(SOME, served / "birds.pth")
    with running(served) as server:
        over = {"model__name": "resnet18", "model__pretrained": f"{server.url}/birds.pth"}
        with pytest.raises(UserError, match=r"nothing says what its SHA-256 is; set model.pretrained_sha256"):
            fetch(run_of(tmp_path, **over))
        right = run_of(tmp_path, **over, model__pretrained_sha256=storage.hash_file(served / "birds.pth"))
        assert fetch(right)
        assert "digits" not in capsys.readouterr().err
    with pytest.raises(UserError, match=r"model.pretrained_sha256 = 1{64}: the weights in .* have [0-9a-f]{64}"):
        weights.apply_preprocessing(run_of(tmp_path, **over, model__pretrained_sha256="1" * 64))


def test_an_address_with_a_signature_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, model__pretrained="https://127.0.0.1/birds-00000000.pth?token=x")
    with pytest.raises(UserError, match=r"^model\.pretrained: source\.url: must not hold a signature or token"):
        fetch(run)


def test_signed_weights_beside_a_signed_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Secret has both addresses, each under a key of its own; what nobody signed is fetched as it is named."""
    monkeypatch.setenv("TRAINYARD_SECRETS", str(tmp_path / "secrets"))
    (served := tmp_path / "served").mkdir()
    (secret := tmp_path / "secrets" / "http").mkdir(parents=True)
    name = with_hash(served, "birds", SOME)
    other = with_hash(served, "beaks", {"bias": torch.ones(3)})
    (served / "models").mkdir()
    torch.save(SOME, served / RESNET)
    with running(served) as server:
        server.fault = lambda number, handler: (
            "birds" in handler.path and "sig=a" not in handler.path and handler.refuse(403)
        )
        (secret / "url").write_text(f"{server.url}/pets.zip?sig=pets\n")
        birds = run_of(tmp_path, model__name="resnet18", model__pretrained=f"{server.url}/{name}")
        beaks = run_of(tmp_path, model__name="resnet18", model__pretrained=f"{server.url}/{other}")
        assert fetch(beaks)
        with pytest.raises(UserError, match=r"403.*signature"):
            fetch(birds)
        (secret / "weights-url").write_text(f"{server.url}/{other}?sig=b\n{server.url}/{name}?sig=a\n")
        assert fetch(birds)
        shutil.rmtree(tmp_path / "data")
        (secret / "weights-url").write_text(f"{server.url}/{name}?sig=a\n")
        with pytest.raises(
            UserError, match=r"weights-url holds the address of something else than model\.pretrained: "
        ):
            fetch(beaks)
        over = {"model__name": "resnet18", "model__pretrained": "IMAGENET1K_V1"}
        assert fetch(run_of(tmp_path, server, **over, model__pretrained_sha256=storage.hash_file(served / RESNET)))
    assert "sig=" not in "".join(path.read_text() for path in (tmp_path / "data").rglob("*.json"))


def test_a_file_that_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "page.pth").write_text("<html>sign in</html>")
    with running(served) as server:
        over = {
            "model__pretrained": f"{server.url}/page.pth",
            "model__pretrained_sha256": storage.hash_file(served / "page.pth"),
        }
        with pytest.raises(UserError, match=r"page.pth is a page \(HTML or XML\), not a file of weights"):
            fetch(run_of(tmp_path, **over))
    assert not list((tmp_path / "data" / "weights").rglob("model*"))


def test_torchvisions_weights_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a mirror, since the file is ours and so has another hash than theirs: the key says which."""
    served = tmp_path / "served" / RESNET
    served.parent.mkdir(parents=True)
    torch.save(SOME, served)
    with running(tmp_path / "served") as server:
        over = {"model__name": "torchvision:resnet18", "model__pretrained": "ResNet18_Weights.IMAGENET1K_V1"}
        with pytest.raises(InputError, match="and f37072fd was expected"):
            fetch(run_of(tmp_path, server, **over))
        run = run_of(tmp_path, server, **over, model__pretrained_sha256=storage.hash_file(served))
        assert fetch(run) == tmp_path / "data" / "weights" / "resnet18-IMAGENET1K_V1" / "model.pth"
    found = weights.apply_preprocessing(run)
    assert (found.data.image_size, found.data.val_sizes, found.augment.interpolation) == (224, (224, 256), "bilinear")
    assert (found.data.mean, found.data.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with pytest.raises(UserError, match=r"no such weights for resnet18; there are ResNet18_Weights.IMAGENET1K_V1"):
        fetch(run_of(tmp_path, model__name="resnet18", model__pretrained="IMAGENET1K_V9"))


def test_what_is_set_wins_over_what_the_weights_say(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "weights" / "vit_b_16-IMAGENET1K_SWAG_E2E_V1"
    folder.mkdir(parents=True)
    kept = {
        "input_size": [3, 384, 384],
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": [0.5] * 3,
        "std": [0.4] * 3,
    }
    (folder / "config.json").write_text(json.dumps({"pretrained_cfg": kept, "trainyard": {"file": "model.pth"}}))
    over: dict[str, Any] = {"model__name": "vit_b_16", "model__pretrained": "IMAGENET1K_SWAG_E2E_V1"}
    free = weights.apply_preprocessing(run_of(tmp_path, **over))
    assert (free.data.image_size, free.data.val_sizes, free.data.mean, free.data.std) == (
        384, (384, 384), [0.5] * 3, [0.4] * 3
    )  # fmt: skip
    assert free.augment.interpolation == "bicubic"
    over |= {"data__image_size": 192, "data__mean": [0.1] * 3, "augment__interpolation": "bilinear"}
    held = weights.apply_preprocessing(run_of(tmp_path, **over))
    assert (held.data.image_size, held.data.val_sizes, held.data.mean, held.data.std) == (
        192, (192, 219), [0.1] * 3, [0.4] * 3
    )  # fmt: skip
    assert held.augment.interpolation == "bilinear"


def hub_of(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder to serve with the weights of a small timm model, where the hub has them."""
    served = tmp_path / "served" / HUB
    served.parent.mkdir(parents=True)
    torch.manual_seed(5)
    import timm

    state = timm.create_model("test_vit", pretrained=False).state_dict()
    save_file(state, served)
    return served, state


def test_timms_weights_by_the_hash_that_its_hub_names(tmp_path: Path) -> None:
    served, state = hub_of(tmp_path)
    digest = storage.hash_file(served)
    with running(tmp_path / "served") as server:

        def linked(number: int, handler: Any) -> bool:
            return handler.command == "HEAD" and handler.refuse(302, X_Linked_ETag=f'"{digest}"', Location="/elsewhere")

        server.fault = linked
        run = run_of(tmp_path, server, model__name="timm:test_vit", model__pretrained="timm")
        file = fetch(run)
        server.fault = lambda number, handler: (
            handler.command == "HEAD" and handler.refuse(302, X_Linked_ETag=f'"{"0" * 64}"')
        )
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(InputError, match=r"0{64} was expected"):
            fetch(run)
    assert file == tmp_path / "data" / "weights" / "timm-test_vit" / "model.safetensors"
    server.fault = linked
    with running(tmp_path / "served") as server:
        server.fault = linked
        fetch(run_of(tmp_path, server, model__name="timm:test_vit", model__pretrained="timm"))
    import timm

    known = timm.get_pretrained_cfg("test_vit")
    found = weights.apply_preprocessing(run)
    assert found.data.image_size == known.input_size[1]
    assert (found.data.mean, found.data.std) == (list(known.mean), list(known.std))
    assert found.augment.interpolation == known.interpolation
    model = build(found, known.num_classes)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


def test_position_embeddings_are_resized_to_the_pictures(tmp_path: Path) -> None:
    """As timm does it itself for the same file, and as torchvision's function does."""
    served, state = hub_of(tmp_path)
    run = run_of(tmp_path, model__name="timm:test_vit", model__pretrained=str(served), data__image_size=96)
    ours = build(run, 1000).state_dict()
    import timm

    theirs = timm.create_model("test_vit", img_size=96, pretrained=True, pretrained_cfg_overlay={"file": str(served)})
    assert ours["pos_embed"].shape != state["pos_embed"].shape
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours[key], value), key
    torch.save(factory.create("little_models:vit", 7, 64).state_dict(), tmp_path / "vit.pth")
    run = run_of(
        tmp_path, model__name="little_models:vit", model__pretrained=str(tmp_path / "vit.pth"), data__image_size=96
    )
    assert build(run, 7).state_dict()["encoder.pos_embedding"].shape[1] == 10


def test_models_and_weights_of_different_libraries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only timm's models have such weights; set model.name to timm:resnet18"):
        fetch(run_of(tmp_path, model__name="resnet18", model__pretrained="timm"))
    with pytest.raises(UserError, match="only torchvision's models have weights of such names"):
        fetch(run_of(tmp_path, model__name="timm:resnet18", model__pretrained="IMAGENET1K_V1"))


def test_a_run_starts_from_what_the_command_fetched(trainer: Trainer, tmp_path: Path) -> None:
    """Without them it ends with 2 and names the command; then it learns from them, and keeps what is frozen."""
    served = tmp_path / "served"
    served.mkdir()
    torch.manual_seed(3)
    state = factory.create("little_models:net", 9).double().state_dict()
    name = with_hash(served, "net", state)
    with running(served) as server:
        over = {
            "model.pretrained": f"{server.url}/{name}", "model.weights_dir": str(tmp_path / "kept"),
            "model.freeze": "backbone", "max_steps": 3, "epochs": None,
        }  # fmt: skip
        code, output = trainer.run(tmp_path / "early", **over)
        assert code == 2
        assert "trainyard prepare weights" in output
        assert not server.requests
        (tmp_path / "run.json").write_text("{}")
        flags = [
            f"--set={key}={json.dumps(value)}" for key, value in trainer.settings(tmp_path / "run", **over).items()
        ]
        assert prepare(["weights", "--config", str(tmp_path / "run.json"), *flags]) == 0
    run = trainer.train(tmp_path / "run", **over)  # the server is gone
    found = published_weights(run)
    assert "the head (fc) starts at random with 4 outputs; these weights have 9 of them" in (
        "".join(path.read_text() for path in (run / "logs").glob("*.log"))
    )
    for key, value in found.items():
        assert torch.equal(value, state[key]) != key.startswith("fc."), key
