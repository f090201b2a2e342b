"""Fits weights to a model: which of a file's state dicts, and its names without what wrappers put before them.

A choice that more than one part of a file could answer is made only between weights and their average, and said.
"""

import re
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainyard.models.states import At, State, load_expression, refused_state, saved_alone

COUNTER = "num_batches_tracked"  # what old BatchNorms lack, and torch adds
# What torch.compile, FSDP and activation checkpointing put into names, anywhere
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
AVERAGE = re.compile(r"(?i)(^|[._])(ema|swa|avg|averaged?)([._]|$)")
SHOWN = 3
# Names that torchvision's models had, and that its published weights still have, by the module that renames them
FORMER = {
    "torchvision.models.vision_transformer": (
        (re.compile(r"(?<=\.mlp\.)linear_1(?=\.)"), "0"), (re.compile(r"(?<=\.mlp\.)linear_2(?=\.)"), "3"),
    ),
    "torchvision.models.densenet": ((re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)"), r"\1"),),
}  # fmt: skip
# By which names of a file tell whose models they are of
LIBRARIES = {
    "timm": re.compile(r"(blocks\.\d|patch_embed\.|stages\.\d|conv_stem|stem\.|layers\.\d+\.blocks\.)"),
    "torchvision": re.compile(r"(conv_proj\.|encoder\.layers\.encoder_layer_|features\.\d)"),
    "transformers": re.compile(r"(\w+\.)?(embeddings\.|embedder\.|encoder\.(layer|stages)\.\d)"),
    "CLIP": re.compile(r"visual\."),
}


@dataclass(frozen=True)
class Fit:
    """A state dict as a model has it: where it was, what it lacks, and what it has that the model has not."""

    at: At
    prefix: str
    state: State
    wrappers: tuple[str, ...]  # what of WRAPPERS was in its names
    outside: tuple[str, ...]  # names of the state dict that do not begin with the prefix
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    unlike: tuple[str, ...]  # names whose tensors have another size, with both sizes

    @property
    def plain(self) -> bool:
        """Whether it is the whole file."""
        return not (self.at or self.prefix or self.wrappers)

    @property
    def fits(self) -> bool:
        """Whether the model takes it."""
        return not (self.unknown or self.missing or self.unlike)

    @property
    def average(self) -> bool:
        """Whether it is an average of the weights over training's steps."""
        return "n_averaged" in self.outside or AVERAGE.search(".".join((*self.at, self.prefix))) is not None

    @property
    def name(self) -> str:
        """Where it is, for people."""
        place = "".join(f"[{key!r}]" for key in self.at) or "the file itself"
        kind = " (an average of the weights)" if self.average else ""
        removed = " and ".join(repr(part) for part in (self.prefix, *self.wrappers) if part)
        return place + kind + (f", its names without {removed}" if removed else "")


def find_head(model: nn.Module) -> tuple[str, Any]:
    """Name and module of the last linear layer; an empty name if there is none."""
    heads = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return heads[-1] if heads else ("", None)


def fit(states: Mapping[At, State], model: nn.Module, path: Path, *, with_head: bool) -> tuple[Fit, str]:
    """Return the weights of a file for a model, and what to say of the choice, if anything; the head's may be left out.

    Raises ValueError, whose message follows on the file's name.
    """
    options = [option for at, state in states.items() for option in _options(at, state, model, with_head)]
    fitting = _different(option for option in options if option.fits)
    if not fitting:
        raise ValueError(misfit(min(options, key=lambda option: (len(option.missing), -len(option.state))), model))
    averages = [option for option in fitting if option.average]
    if len(fitting) == 1:
        return fitting[0], _told(fitting[0])
    if len(fitting) == 2 and len(averages) == 1:
        other = next(option for option in fitting if not option.average)
        return averages[0], f"{_told(averages[0])}; not taken: {other.name}, which fits too (see docs/fine-tune.md)"
    raise ValueError(
        f"holds {len(fitting)} state dicts that fit: {'; '.join(option.name for option in fitting)}. Save the one that "
        f"is meant alone, such as the first, where you trust the file: {saved_alone(_alone(fitting[0], path))}"
    )


def _different(options: Iterable[Fit]) -> list[Fit]:
    """One of those that are the same tensors under several keys."""
    found: dict[tuple[int, ...], Fit] = {}
    for option in options:
        found.setdefault(tuple(map(id, option.state.values())), option)
    return list(found.values())


def _alone(option: Fit, path: Path) -> str:
    """Python for one state dict of a file."""
    what = load_expression(path, option.at)
    return f"{{k: v for k, v in {what}.items() if {option.prefix!r} in k}}" if option.prefix else what


def _told(chosen: Fit) -> str:
    """Return what to say of weights that are not the whole file; empty if they are."""
    rest = f"; left out: {_few(chosen.outside)}" if chosen.outside else ""
    return f"taken: {chosen.name}{rest}" if rest or not chosen.plain else ""


def misfit(option: Fit, model: nn.Module) -> str:
    """Return the words for weights that do not fit: what is too much, what is lacking, and the likely reason."""
    wanted, place = len(model.state_dict()), "" if option.plain else f" ({option.name})"
    said = [
        f"{len(names):,} {what} ({_few(names)})"
        for names, what in (
            (option.unknown, f"of its {len(option.state):,} names are not the model's"),
            (option.missing, f"of the model's {wanted:,} names are missing in it"),
            (option.unlike, "of its tensors have another size"),
        ) if names
    ]  # fmt: skip
    return f"does not fit {type(model).__name__}{place}: {', '.join(said)}; {_reason(option, model)}"


def _reason(option: Fit, model: nn.Module) -> str:
    module = type(model).__module__
    own = next((name for name in ("timm", "torchvision") if module.startswith(f"{name}.")), "")
    theirs = next((name for name, mark in LIBRARIES.items() if any(map(mark.match, option.unknown))), "")
    if theirs in ("timm", "torchvision") and theirs != own:
        return f"these are names of {theirs}'s models: set model.name to {theirs}:NAME"
    if theirs and theirs != own:
        return f"these are names of {theirs}'s models, which model.pretrained does not take"
    if not option.missing and not option.unlike:
        return "it is of a larger model than model.name says, or of one with more parts"
    if not option.unknown and not option.unlike:
        return "it is a part of the model, or of a smaller one than model.name says"
    head = find_head(model)[0]
    if not option.unknown and not option.missing and all(name.startswith(f"{head}.") for name in option.unlike):
        return "it has another number of classes: set model.pretrained_head to auto"
    return "it is of another model than model.name says, or of one with other settings"


def _few(names: Iterable[str]) -> str:
    """Return the first names."""
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")


def _options(at: At, state: State, model: nn.Module, with_head: bool) -> Iterator[Fit]:
    """Yield a state dict by each prefix whose removal might make its names the model's."""
    wrappers = tuple(sorted({found for name in state for found in WRAPPERS.findall(name)}))
    state = _renamed(_unwrapped(state), model)
    wanted, head = model.state_dict(), find_head(model)[0]
    free = f"{head}." if head and not with_head else "\n"  # what no name begins with
    needed = [name for name in wanted if not name.endswith(COUNTER) and not name.startswith(free)]
    for prefix, names in _parts(state, needed):
        found = _adapted({name.removeprefix(prefix): value for name, value in state.items() if name in names}, model)
        bound = {name: value for name, value in found.items() if not name.startswith(free)}
        yield Fit(
            at, prefix, found, wrappers,
            outside=tuple(name for name in state if name not in names),
            unknown=tuple(name for name in bound if name not in wanted),
            missing=tuple(name for name in needed if name not in found),
            unlike=tuple(
                f"{name}: {_size(value)} in place of {_size(wanted[name])}"
                for name, value in bound.items() if name in wanted and value.shape != wanted[name].shape
            ),
        )  # fmt: skip


def _parts(state: State, needed: Sequence[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Prefixes, and the names that begin with each; those behind which all names are that a model needs, if any are."""
    whole = [
        prefix for prefix in (_before(needed[0], state) if needed else [])
        if all(prefix + name in state for name in needed)
    ]  # fmt: skip
    for prefix in whole or _common(state):
        longer = tuple(other for other in whole if other != prefix and other.startswith(prefix))
        yield prefix, frozenset(name for name in state if name.startswith(prefix) and not name.startswith(longer))


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _unwrapped(state: State) -> State:
    """Names without what wrappers put into them, unless two would become one."""
    names = {name: WRAPPERS.sub("", name) for name in state}
    return {names[name]: value for name, value in state.items()} if len(set(names.values())) == len(names) else state


def _renamed(state: State, model: nn.Module) -> State:
    """Names as this version of torchvision has them."""
    for former, today in FORMER.get(type(model).__module__, ()):
        state = {former.sub(today, name): value for name, value in state.items()}
    return state


def _before(name: str, state: State) -> list[str]:
    """Return what stands before a name of the model in the names of a state dict."""
    return [found.removesuffix(name) for found in state if found == name or found.endswith(f".{name}")]


def _common(state: State) -> list[str]:
    """No prefix, and each one that all names with a dot have in common."""
    prefixes, prefix = [""], ""
    while len(first := {name[len(prefix) :].partition(".")[0] for name in state if "." in name[len(prefix) :]}) == 1:
        prefix += f"{first.pop()}."
        prefixes.append(prefix)
    return prefixes


def _adapted(state: State, model: nn.Module) -> State:
    """Get a state as this model has it: timm renames older names, and resizes position embeddings to the images."""
    module = type(model).__module__
    adapt = getattr(sys.modules[module], "checkpoint_filter_fn", None)
    place = "encoder.pos_embedding"
    try:
        if adapt and module.startswith("timm."):
            adapted: State = adapt(dict(state), model)
            return adapted
        if module == "torchvision.models.vision_transformer" and place in state:
            from torchvision.models.vision_transformer import interpolate_embeddings

            known: Any = model
            if state[place].shape != known.state_dict()[place].shape:
                return dict(interpolate_embeddings(known.image_size, known.patch_size, OrderedDict(state)))
    except refused_state():
        return state  # another model's; the comparison of names says so
    return state
