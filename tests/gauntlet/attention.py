"""Attention, whose units are heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net, parameter, sample

SEQUENCE = (2, 6, 12)


class Attention(nn.Module):
    """Self-attention as in timm, with its sizes in attributes."""

    def __init__(self, width: int = 12, heads: int = 3, *, fused: bool = True) -> None:
        super().__init__()
        self.num_heads = heads
        self.head_dim = width // heads
        self.scale = self.head_dim**-0.5
        self.fused = fused
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(self.join(x))

    def join(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


class AttentionOfInputWidth(Attention):
    """Takes its output's width from its input, so that heads and width are tied."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


@net(SEQUENCE, "attention.qkv", attention=Attention(), fc=nn.Linear(12, 5))
def attention_fused(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.attention(x).mean(1))


@net(SEQUENCE, "attention.qkv", attention=Attention(fused=False), fc=nn.Linear(12, 5))
def attention_by_hand(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.attention(x).mean(1))


@net(IMAGE, "embed attention.qkv", embed=nn.Conv2d(3, 12, 4, 4), pos=parameter(1, 4, 12),
     attention=Attention(), fc1=nn.Linear(12, 8), fc2=nn.Linear(8, 12),
     fc=nn.Linear(12, 5))  # fmt: skip
def transformer_without_norms(m: Net, x: Tensor) -> Tensor:
    """The width of the residual stream and the heads are pruned apart."""
    x = m.embed(x).flatten(2).transpose(1, 2) + m.pos
    x = x + m.attention(x)
    x = x + m.fc2(F.gelu(m.fc1(x)))
    return m.fc(x.mean(1))


@net(IMAGE, "embed attention.qkv fc1", statistics=True, embed=nn.Conv2d(3, 12, 4, 4),
     norm1=nn.LayerNorm(12), attention=Attention(), norm2=nn.LayerNorm(12), fc1=nn.Linear(12, 8),
     fc2=nn.Linear(8, 12), fc=nn.Linear(12, 5))  # fmt: skip
def transformer(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2)
    x = x + m.attention(m.norm1(x))
    x = x + m.fc2(F.gelu(m.fc1(m.norm2(x))))
    return m.fc(x.mean(1))


@net(IMAGE, "fc1", either="embed attention.qkv", literal=True, embed=nn.Conv2d(3, 12, 4, 4),
     attention=AttentionOfInputWidth(), fc1=nn.Linear(12, 8), fc=nn.Linear(8, 5))  # fmt: skip
def attention_of_input_width(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2)
    return m.fc(m.fc1(m.attention(x)).relu().mean(1))


@net(SEQUENCE, "v", either="q k", literal=True, q=nn.Linear(12, 8), k=nn.Linear(12, 8),
     v=nn.Linear(12, 6), fc=nn.Linear(6, 5))  # fmt: skip
def attention_of_one_head(m: Net, x: Tensor) -> Tensor:
    """The values' width is free; the default scale knows the width of queries and keys."""
    return m.fc(F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x)).mean(1))


@net(SEQUENCE, "v", either="q k", literal=True, q=nn.Linear(12, 8), k=nn.Linear(12, 8),
     v=nn.Linear(12, 6), fc=nn.Linear(6, 5))  # fmt: skip
def attention_scaled_by_shape(m: Net, x: Tensor) -> Tensor:
    q, k, v = m.q(x), m.k(x), m.v(x)
    weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
    return m.fc((weights @ v).mean(1))


@net(SEQUENCE, "v", either="q k", q=nn.Linear(12, 8), k=nn.Linear(12, 8), v=nn.Linear(12, 6),
     fc=nn.Linear(6, 5))  # fmt: skip
def attention_with_mask(m: Net, x: Tensor) -> Tensor:
    x = F.scaled_dot_product_attention(
        m.q(x), m.k(x), m.v(x), is_causal=True, dropout_p=0.1 * m.training, scale=0.4
    )
    return m.fc(x.mean(1))


@net(
    IMAGE,
    "v",
    either="q k",
    q=conv(3, 4, 1),
    k=conv(3, 4, 1),
    v=conv(3, 8, 1),
    gamma=parameter(1),
    mix=conv(8, 8, 1),
    head=head(8),
)
def attention_of_pixels(m: Net, x: Tensor) -> Tensor:
    """SAGAN: every pixel looks at every other one."""
    q, k, v = m.q(x).flatten(2), m.k(x).flatten(2), m.v(x).flatten(2)
    weights = torch.bmm(q.transpose(1, 2), k).softmax(-1)
    out = torch.bmm(v, weights.transpose(1, 2)).unflatten(2, (8, 8))
    return m.head(m.gamma * m.mix(out))


@net(IMAGE, "conv2", either="qkv", qkv=conv(3, 24, 1), conv2=conv(8, 6), head=head(6))
def attention_of_channels(m: Net, x: Tensor) -> Tensor:
    """XCiT without heads: a softmax over channels."""
    q, k, v = m.qkv(x).flatten(2).chunk(3, 1)
    weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(1, 2)).softmax(-1)
    return m.head(m.conv2((weights @ v).unflatten(2, (8, 8))).relu())


@net(IMAGE, "conv2", either="qkv", qkv=conv(3, 24, 1), conv2=conv(8, 6), head=head(6))
def attention_linear(m: Net, x: Tensor) -> Tensor:
    """EfficientViT: relu features, products in the cheap order, divided by their sum."""
    q, k, v = m.qkv(x).flatten(2).chunk(3, 1)
    q, k = q.relu(), k.relu()
    v = F.pad(v, (0, 0, 0, 1), value=1.0)
    out = (v @ k.transpose(1, 2)) @ q
    out = out[:, :-1] / (out[:, -1:] + 1e-3)
    return m.head(m.conv2(out.unflatten(2, (8, 8))).relu())


@net(IMAGE, "fc1", either="embed", embed=nn.Conv2d(3, 12, 4, 4),
     attention=nn.MultiheadAttention(12, 3, batch_first=True), fc1=nn.Linear(12, 8),
     fc=nn.Linear(8, 5))  # fmt: skip
def multihead_attention(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2)
    return m.fc(m.fc1(m.attention(x, x, x, need_weights=False)[0]).relu().mean(1))


@net(IMAGE, "fc1", either="embed", embed=nn.Conv2d(3, 12, 4, 4),
     attention=nn.MultiheadAttention(12, 3, dropout=0.1), fc1=nn.Linear(12, 8),
     fc=nn.Linear(8, 5))  # fmt: skip
def multihead_attention_sequence_first(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).permute(2, 0, 1)
    return m.fc(m.fc1(x + m.attention(x, x, x)[0]).relu().mean(0))


@net(IMAGE, "fc1", embed=nn.Conv2d(3, 12, 4, 4), either="embed",
     attention=nn.MultiheadAttention(12, 3, bias=False, add_zero_attn=True, batch_first=True),
     fc1=nn.Linear(12, 8), fc=nn.Linear(8, 5))  # fmt: skip
def multihead_attention_without_bias(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2)
    return m.fc(m.fc1(m.attention(x, x, x)[0]).relu().mean(1))


@net(
    lambda g: (sample((2, 4, 7), g), sample((2, 6, 9), g)),
    "fc1 key value",
    query=nn.Linear(7, 12),
    key=nn.Linear(9, 10),
    value=nn.Linear(9, 8),
    fc1=nn.Linear(12, 8),
    fc=nn.Linear(8, 5),
    attention=nn.MultiheadAttention(12, 3, kdim=10, vdim=8, batch_first=True),
)
def multihead_attention_across(m: Net, x: Tensor, memory: Tensor) -> Tensor:
    """Keys and values have widths of their own, which nothing ties to the heads."""
    out, _ = m.attention(m.query(x), m.key(memory), m.value(memory))
    return m.fc(m.fc1(out).relu().mean(1))


@net(SEQUENCE, "layer.linear1", fc=nn.Linear(12, 5),
     layer=nn.TransformerEncoderLayer(12, 3, 16, dropout=0.1, batch_first=True))  # fmt: skip
def encoder_layer(m: Net, x: Tensor) -> Tensor:
    """The width is that of the input, which stays; the hidden layer is free."""
    return m.fc(m.layer(x).mean(1))


@net(IMAGE, "layer.linear1", either="embed", statistics=True, embed=nn.Conv2d(3, 12, 4, 4),
     layer=nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=True),
     fc=nn.Linear(12, 5))  # fmt: skip
def encoder_layer_norm_first(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.layer(m.embed(x).flatten(2).transpose(1, 2)).mean(1))


@net(
    IMAGE,
    "attention.qkv",
    either="embed",
    embed=nn.Conv2d(3, 12, 4, 4),
    token=parameter(1, 1, 12),
    pos=parameter(1, 5, 12),
    attention=Attention(),
    fc=nn.Linear(12, 5),
)
def class_token(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2)
    x = torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.pos
    return m.fc(m.attention(x)[:, 0])
