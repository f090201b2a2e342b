"""The moving average of the weights against PyTorch's AveragedModel, driven as by torchvision's reference script."""

import contextlib
from pathlib import Path

import pytest
import torch
from conftest import Trainer
from published import weights
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from trainyard.config.sections.learning import EmaSettings
from trainyard.data.sampler import Length
from trainyard.training.ema import Ema, decay_of


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)).double()


def train_a_little(model: nn.Module) -> None:
    model(torch.randn(4, 3, 6, 6, dtype=torch.float64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


@pytest.mark.parametrize(("every", "warmup"), [(1, 0), (3, 0), (3, 2), (8, 1)])
def test_average_is_that_of_torchvisions_reference_script(every: int, warmup: int) -> None:
    model, per_epoch, epochs, batch = net(), 7, 4, 12
    settings = EmaSettings(decay=0.999, every_steps=every, adjust="torchvision")
    ema = Ema(model, settings, batch=batch, length=Length(per_epoch * epochs, per_epoch), warmup_epochs=warmup)
    decay = 1 - min(1.0, (1 - 0.999) * (batch * every / epochs))
    reference = AveragedModel(model, avg_fn=lambda old, new, _: decay * old + (1 - decay) * new, use_buffers=True)
    for epoch in range(epochs):
        for index in range(per_epoch):
            train_a_little(model)
            if index % every == 0:
                reference.update_parameters(model)
                if epoch < warmup:
                    reference.n_averaged.fill_(0)
            ema.update(epoch * per_epoch + index)
            expected = reference.module.state_dict()
            assert set(ema.state_dict()) == {name for name in expected if "tracked" not in name}
            for name, value in ema.state_dict().items():
                torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)
    assert not torch.equal(ema.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_decay_of_torchvisions_recipe() -> None:
    """1 - 0.00002 * (1,024 * 32 / 600): 8 processes of 128, every 32 steps, 600 epochs."""
    assert decay_of(EmaSettings(decay=0.99998, every_steps=32, adjust="torchvision"), 1024, 600) == pytest.approx(
        0.99890773333, abs=1e-10
    )
    assert decay_of(EmaSettings(decay=0.9, every_steps=32, adjust="torchvision"), 1024, 600) == 0.0  # no less
    assert decay_of(EmaSettings(decay=0.9999), 1024, 600) == pytest.approx(0.9999)


def test_average_is_lent_to_the_model_and_taken_back() -> None:
    model = net()
    ema = Ema(model, EmaSettings(decay=0.5), batch=4, length=Length(10, 5), warmup_epochs=0)
    for step in range(3):
        train_a_little(model)
        ema.update(step)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with contextlib.suppress(KeyError), ema.applied():
        for name, value in ema.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)
            assert not torch.equal(value, own[name])
        raise KeyError  # what is lent is taken back whatever happens
    for name, value in model.state_dict().items():
        assert torch.equal(value, own[name])


def test_a_loaded_average_continues_bit_by_bit() -> None:
    model = net()
    length = Length(10, 5)
    ema = Ema(model, EmaSettings(decay=0.9), batch=4, length=length, warmup_epochs=1)
    for step in range(7):
        train_a_little(model)
        ema.update(step)
    other = Ema(model, EmaSettings(decay=0.9), batch=4, length=length, warmup_epochs=1)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(ema.state_dict(), strict=False)
    other.restart()  # as a run resumes: from the model, which has the saved average for a moment
    model.load_state_dict(own)
    train_a_little(model)
    ema.update(7)
    other.update(7)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in ema.state_dict().items())


def test_an_average_enabled_in_mid_run_starts_from_the_loaded_weights(trainer: Trainer, tmp_path: Path) -> None:
    over = {"epochs": None, "schedule.warmup_epochs": 0, "checkpoint.every_steps": 2}
    run = trainer.train(tmp_path / "run", **over, max_steps=2)
    before = load_file(run / "checkpoints" / "step-00000002" / "model.safetensors")
    trainer.train(run, **over, **{"max_steps": 3, "ema.decay": 1.0})  # never moves from where it starts
    published = weights(run)
    assert all(torch.equal(published[name], value) for name, value in before.items() if value.is_floating_point())
