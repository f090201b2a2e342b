"""Plain vision transformers: timm's, with a fixed position embedding, the mean over tokens and a head of two layers.

Beyer et al., "Better plain ViT baselines for ImageNet-1k", arXiv:2205.01580, and big_vision's models/vit.py.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.core.exits import UserError
from trainyard.models.factory import import_timm

PATCH, WIDTH, DEPTH, HEADS = 16, 384, 12, 6


def vit_s16(num_classes: int, image_size: int = 224) -> nn.Module:
    """ViT-S/16 for images `image_size` pixels high and wide, a multiple of 16; raises UserError."""
    if image_size % PATCH:
        raise UserError(f"data.image_size = {image_size}: this transformer needs a multiple of {PATCH}")
    timm = import_timm("trainyard.models.plain_vit:vit_s16")
    model: Any = timm.models.VisionTransformer(
        img_size=image_size, patch_size=PATCH, num_classes=0, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS,
        class_token=False, global_pool="avg", fc_norm=False, act_layer=partial(nn.GELU, approximate="tanh"),
        norm_layer=partial(nn.LayerNorm, eps=1e-6), weight_init="skip",
    )  # fmt: skip
    model.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, num_classes))
    model.num_classes = num_classes
    model.pos_embed.requires_grad_(False).copy_(sines_and_cosines(image_size // PATCH, WIDTH)[None])
    _initialise(model)
    plain: nn.Module = model
    return plain


def sines_and_cosines(side: int, width: int) -> Tensor:
    """Return the fixed embedding (side * side, width) of a square of patches, row by row; `width` is a multiple of 4.

    A quarter each: sine and cosine of the column, sine and cosine of the row, at frequencies from 1 down to 1e-4
    (big_vision, models/vit.py, posemb_sincos_2d).
    """
    frequencies = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4 - 1))
    row, column = torch.meshgrid(*(torch.arange(side, dtype=torch.float64),) * 2, indexing="ij")
    angles = [place.flatten()[:, None] * frequencies for place in (column, row)]
    return torch.cat([part(angle) for angle in angles for part in (torch.sin, torch.cos)], dim=1).float()


def _initialise(model: Any) -> None:
    """Flax's initialisation of big_vision: Glorot's of each projection by itself, LeCun's of the patches, no head."""
    _lecun(model.patch_embed.proj.weight, 3 * PATCH**2)
    nn.init.zeros_(model.patch_embed.proj.bias)
    for block in model.blocks:
        bound = math.sqrt(6 / (2 * WIDTH))  # query, key and value are three matrices there
        nn.init.uniform_(block.attn.qkv.weight, -bound, bound)
        nn.init.zeros_(block.attn.qkv.bias)
        nn.init.xavier_uniform_(block.attn.proj.weight)
        nn.init.zeros_(block.attn.proj.bias)
        for layer in (block.mlp.fc1, block.mlp.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)
    hidden, _, head = model.head
    _lecun(hidden.weight, WIDTH)
    for part in (hidden.bias, head.weight, head.bias):
        nn.init.zeros_(part)


def _lecun(weight: Tensor, inputs: int) -> None:
    """LeCun's normal distribution, cut off at two standard deviations, with the variance 1 / inputs all the same."""
    std = math.sqrt(1 / inputs) / 0.87962566  # of a normal distribution that is cut off there (jax.nn.initializers)
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
