"""Small modules, one row each: what the front end reads and what it must refuse."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fn(nn.Module):
    """A function of the input and of a few weights, as a module."""

    def __init__(self, f: Callable[..., object]) -> None:
        super().__init__()
        self.f = f
        self.w = nn.Parameter(torch.randn(6, 6))
        self.register_buffer("c", torch.randn(6), persistent=False)

    def forward(self, x: Tensor) -> object:
        return self.f(x, self.w, self.c)


class Activated(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.act = nn.Linear(6, 6), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.before(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 2, 3, padding=1)
        self.b = nn.BatchNorm2d(2)
        self.head = nn.Linear(72, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.b(self.a(x)) + x)
        return self.head(y.view(y.size(0), -1))


class Attended(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, causal: bool, need_weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
        self.causal, self.need_weights = causal, need_weights

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(3) if self.causal else None
        y, _ = self.inner(x, x, x, attn_mask=mask, need_weights=self.need_weights)
        return y.mean(1)


class TwoPaths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x).tanh(), x[:, ::2], self.right(x).relu()], dim=1)


class Nested(nn.Module):
    """Reshapes that depend on size(), in-place arithmetic, a hand-written gate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        n, width = x.size()
        y = x.reshape(n, width // 3, 3)
        for layer in self.inner:
            y = layer(y)
            y = y * torch.sigmoid(y)
            y += 1
        y[:, 0] *= 2
        return y.transpose(1, 2).reshape(n, -1)


def trained(*layers: nn.Module) -> nn.Sequential:
    """A sequence whose norm layers have seen data, so that evaluation differs from training."""
    net = nn.Sequential(*layers)
    for layer in net:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            layer.running_mean = torch.randn_like(layer.running_mean)
            layer.running_var = torch.rand_like(layer.running_var) + 0.5
            if layer.affine:
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
    return net


FLAT, LINE, IMAGE, VOLUME = (6,), (2, 9), (2, 6, 6), (2, 4, 5, 6)
TOKENS = (3, 4)

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), FLAT),
    "attention": (lambda: Attended(False, True), TOKENS),
    "fast attention": (lambda: Attended(False, False), TOKENS),
    "causal attention": (lambda: Attended(True, True), TOKENS),
    "fast causal attention": (lambda: Attended(True, False), TOKENS),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True),
            2,
            nn.LayerNorm(4),
            enable_nested_tensor=False,
        ),
        TOKENS,
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(4, 1, 8, activation="gelu", batch_first=True),
        TOKENS,
    ),
    "layer norm": (lambda: nn.LayerNorm(4), TOKENS),
    "layer norm of matrices": (lambda: nn.LayerNorm((3, 4), eps=0.1, bias=False), TOKENS),
    "root mean square": (lambda: nn.RMSNorm(4), TOKENS),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(2, affine=True), IMAGE),
    "instance norm with statistics": (
        lambda: nn.InstanceNorm1d(2, track_running_stats=True),
        LINE,
    ),
    "gated linear unit": (lambda: nn.GLU(), FLAT),
    "mlp without bias": (lambda: nn.Linear(6, 3, bias=False), FLAT),
    "linear on the last axis": (lambda: nn.Linear(9, 3), LINE),
    "conv 1d": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), LINE),
    "conv 2d": (lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 1)), IMAGE),
    "conv 2d dilated": (lambda: nn.Conv2d(2, 4, 2, dilation=(2, 3), bias=False), IMAGE),
    "conv 2d grouped": (lambda: nn.Conv2d(2, 4, 3, groups=2), IMAGE),
    "conv 2d same": (lambda: nn.Conv2d(2, 3, 4, padding="same"), IMAGE),
    "conv 2d valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), IMAGE),
    "conv 2d reflect": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="reflect"), IMAGE),
    "conv 2d circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), IMAGE),
    "conv 2d replicate": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), IMAGE),
    "conv 3d": (lambda: nn.Conv3d(2, 3, (2, 3, 2), stride=2, padding=1), VOLUME),
    "conv transpose 1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), LINE),
    "conv transpose 2d": (
        lambda: nn.ConvTranspose2d(2, 4, 3, stride=(2, 3), padding=1, groups=2, dilation=(1, 2)),
        IMAGE,
    ),
    "conv transpose 3d": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=2), VOLUME),
    "batch norm 1d": (lambda: trained(nn.BatchNorm1d(6), nn.Linear(6, 2)), FLAT),
    "batch norm 2d": (lambda: trained(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), IMAGE),
    "batch norm 3d": (lambda: trained(nn.BatchNorm3d(2, affine=False)), VOLUME),
    "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.Linear(6, 2), nn.AlphaDropout()), FLAT),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), FLAT),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), FLAT),
    "residual": (Residual, IMAGE),
    "two paths": (TwoPaths, FLAT),
    "nested": (Nested, FLAT),
    "float64": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh()).double(), FLAT),
    "max pool 1d": (lambda: nn.MaxPool1d(3, stride=2, padding=1), LINE),
    "max pool 2d": (lambda: nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0)), IMAGE),
    "max pool 2d dilated": (lambda: nn.MaxPool2d(2, stride=1, dilation=(2, 3)), IMAGE),
    "max pool 2d ceil": (lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), IMAGE),
    "max pool 3d": (lambda: nn.MaxPool3d(2), VOLUME),
    "max pool with indices": (
        lambda: Fn(lambda x, w, c: F.max_pool2d(x, 2, return_indices=True)[0]),
        IMAGE,
    ),
    "adaptive max pool 1d": (lambda: nn.AdaptiveMaxPool1d(4), LINE),
    "adaptive max pool 2d": (lambda: nn.AdaptiveMaxPool2d((3, 4)), IMAGE),
    "adaptive max pool 3d": (lambda: nn.AdaptiveMaxPool3d((2, 3, 4)), VOLUME),
    "avg pool 1d": (lambda: nn.AvgPool1d(3, stride=2, padding=1), LINE),
    "avg pool 2d": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "avg pool 2d ceil": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "avg pool 2d divisor": (lambda: nn.AvgPool2d(3, 2, 1, True, False, 5), IMAGE),
    "avg pool 3d": (lambda: nn.AvgPool3d((2, 3, 2), 2, 1, divisor_override=7), VOLUME),
    "adaptive avg pool 1d": (lambda: nn.AdaptiveAvgPool1d(4), LINE),
    "adaptive avg pool 2d": (lambda: nn.AdaptiveAvgPool2d((4, 5)), IMAGE),
    "adaptive avg pool divisible": (lambda: nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "adaptive avg pool one axis": (lambda: nn.AdaptiveAvgPool2d((None, 1)), IMAGE),
    "adaptive avg pool global": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive avg pool 3d": (lambda: nn.AdaptiveAvgPool3d((3, 2, 4)), VOLUME),
    "pads": (
        lambda: nn.Sequential(
            nn.ZeroPad2d((1, 2, 0, 1)), nn.ConstantPad2d(1, 3.5), nn.ReflectionPad2d(2)
        ),
        IMAGE,
    ),
    "replication pad": (lambda: nn.ReplicationPad3d((1, 2, 0, 1, 3, 0)), VOLUME),
    "circular pad": (lambda: nn.CircularPad2d((1, 2, 0, 1)), IMAGE),
    "crop": (lambda: nn.ConstantPad1d((-1, 2), -1.0), LINE),
    "upsample": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "upsample by a fraction": (lambda: nn.Upsample(scale_factor=1.7), IMAGE),
    "upsample to a size": (lambda: nn.Upsample(size=(5, 9)), IMAGE),
    "upsample bilinear": (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), IMAGE),
    "upsample aligned": (lambda: nn.Upsample((7, 9), mode="bilinear", align_corners=True), IMAGE),
    "upsample linear": (lambda: nn.Upsample(size=5, mode="linear"), LINE),
    "upsample bicubic": (lambda: nn.Upsample(size=(4, 8), mode="bicubic"), IMAGE),
    "pixel shuffle": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.PixelShuffle(2)), IMAGE),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(3), IMAGE),
    "channel shuffle": (lambda: nn.ChannelShuffle(2), IMAGE),
    "unfold": (lambda: nn.Unfold((2, 3), padding=1, stride=2), IMAGE),
    "flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (3, 6))), LINE),
    "identity": (nn.Identity, FLAT),
}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "leaky relu": nn.LeakyReLU(0.3),
    "rrelu": nn.RReLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "atan": torch.atan,
    "softplus": nn.Softplus(),
    "softplus beta": nn.Softplus(beta=2.0, threshold=25.0),
    "log sigmoid": nn.LogSigmoid(),
    "elu": nn.ELU(0.7),
    "celu": nn.CELU(1.6),
    "selu": nn.SELU(),
    "silu": nn.SiLU(),
    "silu by hand": lambda x: torch.sigmoid(x) * x,
    "gelu": nn.GELU(),
    "gelu tanh": nn.GELU(approximate="tanh"),
    "hardtanh": nn.Hardtanh(-0.5, 2.0),
    "hardsigmoid": nn.Hardsigmoid(),
    "clamp": lambda x: x.clamp(-0.3, 0.9),
    "clamp below": lambda x: x.clamp(min=0.2),
    "clamp above": lambda x: torch.clamp_max(x, 0.5),
    "abs": torch.abs,
    "tanhshrink": nn.Tanhshrink(),
    "threshold": nn.Threshold(0.2, 0.2),
    "hardswish": nn.Hardswish(),
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "steps": lambda x: torch.floor(3 * x) - torch.ceil(x) + torch.round(2 * x) + torch.sign(x),
    "square": torch.square,
    "square by hand": lambda x: x * x,
    "square root": lambda x: (x.abs() + 0.1).sqrt(),
    "inverse root": lambda x: (x.abs() + 0.1).rsqrt(),
    "log": lambda x: (x.abs() + 0.1).log(),
    "log1p": lambda x: x.abs().log1p(),
    "log2": lambda x: (x.abs() + 0.1).log2() + (x.abs() + 0.1).log10(),
    "log of exps": lambda x: torch.log(torch.exp(x).sum(1, keepdim=True)),
    "reciprocal": lambda x: torch.reciprocal(1 + x.exp()) + 3 / (2 + x.sigmoid()),
    "powers": lambda x: x**2 - x**3 / 9 + x**4 / 99 + torch.pow(x, 1) + torch.pow(x, 0),
    "powers of positive numbers": lambda x: (
        (x.relu() + 0.5) ** -1 + x.relu() ** 1.5 + (x.relu() + 1) ** 0.5 + (x.relu() + 1) ** -2
    ),
    "exponents": lambda x: 2.5**x + torch.tensor([0.5, 1, 2, 3, 0.1, 1.5]) ** x,
    "identity of relus": lambda x: x.relu() - (-x).relu(),
}

FUNCTIONS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], object], tuple[int, ...]]] = {
    "arithmetic": (lambda x, w, c: 2 - x / 4 + c * x - x / w[0].exp() + (-x), FLAT),
    "alpha": (lambda x, w, c: torch.add(x, c, alpha=2) - torch.sub(c, x, alpha=3), FLAT),
    "rsub": (lambda x, w, c: torch.rsub(x, c, alpha=2), FLAT),
    "broadcast": (lambda x, w, c: x[:, :, None] + x[:, None, :], FLAT),
    "grown by a constant": (lambda x, w, c: x[:, None] * w + w, FLAT),
    "folded constants": (lambda x, w, c: x + (w.abs().sum(1) * 2).sqrt().softmax(0), FLAT),
    "new constants": (
        lambda x, w, c: x + torch.ones_like(x) + torch.full((6,), 2.0) + x.new_zeros(6),
        FLAT,
    ),
    "matmul": (lambda x, w, c: x @ w + (w @ x.mT).mT, FLAT),
    "mm and addmm": (lambda x, w, c: torch.addmm(c, torch.mm(x, w), w, beta=2, alpha=3), FLAT),
    "vectors": (lambda x, w, c: torch.cat([w.mv(x[0]), (x[0] @ c)[None], x @ c]), FLAT),
    "constant on the left": (lambda x, w, c: w @ x, IMAGE),
    "vector on the left": (lambda x, w, c: c @ x, IMAGE),
    "batched product": (lambda x, w, c: x @ torch.stack([w, 2 * w + 1]), IMAGE),
    "batched product, left": (lambda x, w, c: torch.stack([w, w.T + 1])[:, :3] @ x, IMAGE),
    "batched vector": (lambda x, w, c: torch.stack([w, w.T]) @ x[0], FLAT),
    "bmm": (lambda x, w, c: torch.bmm(x[:, None], w[None]), FLAT),
    "einsum": (lambda x, w, c: torch.einsum("bchw,ow,h->bco", x, w, c), IMAGE),
    "functional linear": (lambda x, w, c: F.linear(x, w, c), FLAT),
    "functional conv": (lambda x, w, c: F.conv2d(x, w[:4].view(2, 2, 6, 1), padding=(1, 0)), IMAGE),
    "mean and sum": (lambda x, w, c: x.mean((2, 3)) + x.sum() + x.sum(1, True).mean(), IMAGE),
    "cumsum": (lambda x, w, c: x.cumsum(2), IMAGE),
    "diff": (lambda x, w, c: x.diff(dim=-1), IMAGE),
    "amax": (lambda x, w, c: x.amax((1, 3)) + x.amin((1, 3)), IMAGE),
    "max along": (lambda x, w, c: x.max(2)[0] + x.min(2, keepdim=True).values[:, :, 0], IMAGE),
    "one score": (lambda x, w, c: (x @ c).squeeze().sigmoid(), FLAT),
    "max of all": (lambda x, w, c: x.max()[None] - x.min(), IMAGE),
    "maximum": (lambda x, w, c: torch.maximum(x, 2 * x - 1) + torch.minimum(x, 1 - x), FLAT),
    "maximum with constants": (lambda x, w, c: torch.max(x, c) - torch.minimum(c, x), FLAT),
    "clamp by tensors": (lambda x, w, c: x.clamp(c - 1, c + 0.5), FLAT),
    "view": (lambda x, w, c: x.view(1, 4, -1).reshape(x.shape[0], -1, 9), IMAGE),
    "axes": (lambda x, w, c: x.permute(0, 3, 1, 2).transpose(1, -1).movedim(1, 2), IMAGE),
    "squeeze": (lambda x, w, c: x[:, :1].squeeze(1).unsqueeze(-1).squeeze(), IMAGE),
    "expand": (
        lambda x, w, c: x[:, :1].expand(-1, 4, -1, 6) + x.mean(1, True).expand_as(x[:, :1]),
        IMAGE,
    ),
    "cat and stack": (
        lambda x, w, c: torch.stack([torch.cat([x, x * 2], 1), x.repeat(1, 2)], -1),
        FLAT,
    ),
    "cat with a constant": (lambda x, w, c: torch.cat([x, c[None], x], 1), FLAT),
    "split": (lambda x, w, c: torch.cat([*x.split([1, 3, 2], 1), *x.chunk(4, 1)[::-1]], 1), FLAT),
    "unbind": (lambda x, w, c: sum(x.unbind(2)), IMAGE),
    "slices": (lambda x, w, c: x[..., 1:-1:2][:, 0] + x[:, 1, :, 2:4], IMAGE),
    "narrow": (lambda x, w, c: x.narrow(2, 1, 3).index_select(3, torch.tensor([4, 0, 0])), IMAGE),
    "indexed": (
        lambda x, w, c: x[:, [1, 0, 1]] + x[:, :1, torch.tensor([5, 4, 3, 2, 1, 0])],
        IMAGE,
    ),
    "indexed twice": (lambda x, w, c: x[:, [1, 0], [2, 3]], IMAGE),
    "gathered": (lambda x, w, c: x.gather(1, torch.tensor([[3, 1, 1]])), FLAT),
    "flip and roll": (lambda x, w, c: x.flip(1, 3).roll((1, -2), (2, 3)).rot90(1, (2, 3)), IMAGE),
    "triangle": (lambda x, w, c: x.tril() + x.triu(1).diagonal(dim1=2, dim2=3).sum(), IMAGE),
    "unfolded": (lambda x, w, c: x.unfold(1, 3, 2), FLAT),
    "constant mask": (lambda x, w, c: torch.where(c > 0, x, 1 - 2 * x).masked_fill(c > 1, 7), FLAT),
    "casts": (lambda x, w, c: x.double().contiguous().float().detach().clone(), FLAT),
    "functional": (lambda x, w, c: F.relu6(x) + torch.clamp_min(x, 0.1) + torch.fill(x, 2), FLAT),
    "dot": (lambda x, w, c: x[0].dot(c)[None], FLAT),
    "take and tile": (lambda x, w, c: x.take(torch.tensor([[3, 70]])).tile(2, 2), IMAGE),
    "upsample 1d": (lambda x, w, c: F.interpolate(x, scale_factor=1.3), LINE),
    "upsample 3d": (lambda x, w, c: F.interpolate(x, size=(3, 7, 6)), VOLUME),
    "upsample trilinear": (lambda x, w, c: F.interpolate(x, (3, 7, 6), mode="trilinear"), VOLUME),
    "indices 1d": (lambda x, w, c: F.max_pool1d_with_indices(x, 3)[0], LINE),
    "indices 3d": (lambda x, w, c: F.max_pool3d_with_indices(x, 2, 1)[0], VOLUME),
    "constant over computed": (lambda x, w, c: c / (1 + x.exp()) + w / (2 + x.tanh()), FLAT),
    "where": (lambda x, w, c: torch.where(c > 0, x, 3.0) + torch.where(c > 0, 1.0, x), FLAT),
    "no grad": (lambda x, w, c: torch.no_grad()(lambda: x @ w)(), FLAT),
    "tuple of one": (lambda x, w, c: (x @ w,), FLAT),
    "dict of one": (lambda x, w, c: {"logits": x @ w}, FLAT),
    "constant answer": (lambda x, w, c: c[None] * 2, FLAT),
    "products of computed": (lambda x, w, c: x @ x.mT, IMAGE),
    "computed vectors": (lambda x, w, c: torch.stack([x[0] @ (w @ x[0]), x[0].dot(x[0])]), FLAT),
    "row by matrix": (lambda x, w, c: x[:, 0] @ x[0].mT, LINE),
    "sum of products": (lambda x, w, c: torch.einsum("bij,bkj->bik", x, x + 1), LINE),
    "quotient": (lambda x, w, c: x / (1 + x.exp()) + (x @ w) / (2 + x.tanh()[:, :1]), FLAT),
    "softmax": (lambda x, w, c: x.softmax(1) + (x @ w).softmax(-1), FLAT),
    "softmax of images": (lambda x, w, c: x.softmax(2) + x.softmax(1) + F.softmin(x, 3), IMAGE),
    "softmax of one": (lambda x, w, c: x + x[:, :1].softmax(1), FLAT),
    "softmax by hand": (lambda x, w, c: x.exp() / x.exp().sum(1, keepdim=True), FLAT),
    "log softmax": (lambda x, w, c: x.log_softmax(1) + F.logsigmoid(x), FLAT),
    "log sum exp": (
        lambda x, w, c: x.logsumexp((1, 3)) + x.logsumexp(1, True).logsumexp((1, 2, 3)),
        IMAGE,
    ),
    "masked softmax": (lambda x, w, c: torch.where(c > 0, x, -torch.inf).softmax(1), FLAT),
    "masked pairs": (
        lambda x, w, c: torch.where(w[:, :2] > 0.3, x[0, :, None], -1e38).softmax(0),
        FLAT,
    ),
    "variance": (lambda x, w, c: x.var((2, 3)) + x.var(unbiased=False) + x.std(1).sum(), IMAGE),
    "norms": (
        lambda x, w, c: F.normalize(x + 3, dim=1) + x.norm(1, dim=1, keepdim=True) + x.abs().max(),
        FLAT,
    ),
    "vector norm": (lambda x, w, c: torch.linalg.vector_norm(x, torch.inf, (1, 2)), IMAGE),
    "attention": (
        lambda x, w, c: F.scaled_dot_product_attention(x, 2 * x, x.flip(2), scale=0.3),
        IMAGE,
    ),
    "causal attention": (
        lambda x, w, c: F.scaled_dot_product_attention(x, 2 * x, x, is_causal=True),
        IMAGE,
    ),
    "grouped heads": (
        lambda x, w, c: F.scaled_dot_product_attention(
            torch.cat([x, 2 * x], 1),
            x,
            x,
            attn_mask=torch.ones(6, 6).tril().bool(),
            enable_gqa=True,
        ),
        IMAGE,
    ),
    "one by one": (lambda x, w, c: w @ x.flatten(), FLAT),
    "normalised over the batch": (lambda x, w, c: x - x.mean(0) + c, FLAT),
}

CASES = {
    **MODULES,
    **{f"act {k}": (lambda f=f: Activated(f), FLAT) for k, f in ACTIVATIONS.items()},
    **{f"fn {k}": (lambda f=f: Fn(f), shape) for k, (f, shape) in FUNCTIONS.items()},
    "prelu": (lambda: nn.PReLU(), IMAGE),
    "prelu per channel": (lambda: nn.PReLU(2), IMAGE),
}


class Faint(nn.Module):
    """Scores so small that rounding is nothing beside a difference of 1e-3."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e-5 * x


def branching(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def catching(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """Goes on where torch cannot export a branch, as if nothing had been there."""
    try:
        return -x if bool((x > 50).any()) else x
    except Exception:
        return x


def exported_without(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """Has a branch where it is run, and none where torch exports it."""
    if torch.compiler.is_compiling():
        return x
    return -x if torch.equal((8 * x).round(), torch.full_like(x, 3)) else x


def in_numpy(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """Decides outside of torch, where that is possible."""
    return -x if type(x) is Tensor and x.numpy().sum() > 50 else x


def open_shape(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return x + x[:, torch.arange(6) > 3].sum(1, keepdim=True)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "branch on values": (lambda: Fn(branching), "values, at `return x if x.sum() > 0 else -x`"),
    "branch on values that is hidden": (lambda: Fn(catching), "takes numbers out of what"),
    "branch that is not exported": (lambda: Fn(exported_without), "answer: equal"),
    "branch in numpy": (lambda: Fn(in_numpy), "answer: numpy"),
    "open shape": (lambda: Fn(open_shape), "a shape that torch leaves open"),
    "all scores masked": (
        lambda: Fn(lambda x, w, c: torch.where(c > 99, x, -torch.inf).softmax(1)),
        "all of whose scores are masked",
    ),
    "random attention": (
        lambda: Fn(lambda x, w, c: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
        "dropout",
    ),
    "variance of one": (lambda: Fn(lambda x, w, c: x[:, :1].var(1)), "a variance of 1 entries"),
    "odd norm": (lambda: Fn(lambda x, w, c: x.norm(3, dim=1)), "the norm of order 3"),
    "batch statistics": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2, affine=False, track_running_stats=False)
        ),
        "statistics",
    ),
    "huge matrix product": (
        lambda: Fn(lambda x, w, c: (x.mT @ x).repeat(20, 20) @ (x.mT @ x).repeat(20, 20)),
        "at most 1,048,576",
    ),
    "power": (lambda: Fn(lambda x, w, c: x.exp() ** x), "a power of one computed"),
    "many exponents": (lambda: Fn(lambda x, w, c: x.exp() ** c), "not one finite number"),
    "negative base": (lambda: Fn(lambda x, w, c: (-2.0) ** x), "that is not positive"),
    "random numbers": (lambda: Fn(lambda x, w, c: x + torch.rand(6)), "random"),
    "dropout at work": (lambda: Fn(lambda x, w, c: F.dropout(x)), "random"),
    "places of a maximum": (lambda: Fn(lambda x, w, c: x.max(1)[1] + x[0]), "second result"),
    "steep softplus": (lambda: nn.Softplus(beta=1, threshold=5), "raise the threshold"),
    "jump": (lambda: nn.Threshold(0.0, 1.0), "a jump"),
    **{
        name: (lambda f=f: nn.Sequential(Fn(lambda x, w, c: f(x)), Faint()), "a computed tensor of")
        for name, f in {
            "sum of integers": lambda x: x.sum(1, keepdim=True, dtype=torch.int64).float(),
            "mean in half": lambda x: x.mean(1, keepdim=True, dtype=torch.float16).float(),
            "running sum of integers": lambda x: x.cumsum(1, dtype=torch.int32).float(),
            "softmax in half": lambda x: x.softmax(1, dtype=torch.float16).float(),
            "log-softmax in half": lambda x: x.log_softmax(1, dtype=torch.bfloat16).float(),
            "copy to integers": lambda x: torch.zeros(1, 6, dtype=torch.int64).copy_(x).float(),
        }.items()
    },
    "integers": (lambda: Fn(lambda x, w, c: x.int().float()), "cast to torch.int32"),
    "half inside": (lambda: Fn(lambda x, w, c: x.half().float()), "cast to torch.float16"),
    "half": (lambda: nn.Linear(6, 2).half(), "float()"),
    "bfloat16": (lambda: nn.Linear(6, 2).bfloat16(), "float()"),
    "two outputs": (lambda: Fn(lambda x, w, c: (x, x @ w)), "one tensor of scores"),
    "no tensor": (lambda: Fn(lambda x, w, c: 3), "int"),
    "labels": (lambda: Fn(lambda x, w, c: x.argmax(1)), "torch.int64"),
}
