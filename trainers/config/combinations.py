"""Settings that are each right by themselves and wrong together: optimizer, loss, augmentation, average."""

from trainers.config.settings import Config, Optimizer
from trainers.exits import UserError

ONLY_SGD, ONLY_ADAPTIVE = ("momentum", "nesterov"), ("betas", "eps")


def check(config: Config) -> None:
    """Refuse what one part of the training cannot do with the settings of another."""
    for part in (_optimizer, _loss, _augment, _sizes, _average):
        part(config)


def _optimizer(config: Config) -> None:
    settings, default = config.optimizer, Optimizer()
    foreign, others = (ONLY_ADAPTIVE, "lamb and adamw") if settings.name == "sgd" else (ONLY_SGD, "sgd")
    for key in foreign:
        if (value := getattr(settings, key)) != getattr(default, key):
            raise UserError(
                f"optimizer.{key} = {value} with optimizer.name = {settings.name!r}: it belongs to {others}; remove it "
                f"or, where a recipe sets it, set it to {getattr(default, key)}"
            )
    if settings.nesterov and not settings.momentum:
        raise UserError(
            "optimizer.nesterov = True with optimizer.momentum = 0.0: there is no momentum; set momentum, or nesterov "
            "to false"
        )


def _loss(config: Config) -> None:
    if config.loss.bce_threshold and config.loss.name != "bce":
        raise UserError(
            f"loss.bce_threshold = {config.loss.bce_threshold} with loss.name = {config.loss.name!r}: only bce has "
            "targets to cut off; remove it, or set loss.name to bce"
        )
    if config.loss.bce_threshold and config.loss.label_smoothing:
        raise UserError(
            f"loss.label_smoothing = {config.loss.label_smoothing} with loss.bce_threshold = "
            f"{config.loss.bce_threshold}: the threshold makes all targets 0 or 1 again; set one of them to 0"
        )


def _augment(config: Config) -> None:
    augment = config.augment
    if (augment.mixup or augment.cutmix) and config.batch.micro == 1:
        raise UserError(
            "batch.micro = 1 with augment.mixup or augment.cutmix: neighbours are mixed within a forward; use 2 or more"
        )
    if (augment.mixup or augment.cutmix) and 1 in (config.batch.global_, config.batch.per_process):
        raise UserError(
            "a batch of 1 with augment.mixup or augment.cutmix: no neighbour to mix with; use 2 or more samples"
        )
    if augment.policy == "rand_increasing" and augment.policy_magnitude > 10:
        raise UserError(
            f"augment.policy_magnitude = {augment.policy_magnitude} with augment.policy = 'rand_increasing': that goes "
            "from 0 to 10; use a smaller one, or `rand`, which goes to 30"
        )


def _sizes(config: Config) -> None:
    size, shorter = config.data.val_image_size or config.data.image_size, config.data.val_resize
    if shorter and shorter < size:
        raise UserError(
            f"data.val_resize = {shorter}: smaller than the {size} pixels cut out of it; set it to {size} or more, or "
            "to 0 for 8/7 of them"
        )


def _average(config: Config) -> None:
    if not config.ema.decay and (config.ema.every_steps != 1 or config.ema.adjust != "none"):
        raise UserError(
            "ema.decay = 0.0: no average is kept, but ema.every_steps or ema.adjust is set; set ema.decay too"
        )
