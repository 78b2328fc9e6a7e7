"""The small models in plain PyTorch, with systematic sampling (S2ANTA paper, Appendix A.3) in place of softmax times V where
a schedule asks for it: the embedded Llama, and a BitNet (b1.58: ternary weights, inputs of products on an int8 grid, squared
ReLU, norms before the output and down projections), trained through the rounding. Parameter names are those of Hugging
Face's LlamaForCausalLM and BitNetForCausalLM."""

import torch
import torch.nn.functional as F
from torch import nn

PAD, BOS, EOS, UNK = 0, 1, 2, 3
CHARACTERS = ("\n !#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~")
VOCAB = ["<pad>", "<s>", "</s>", "<unk>"] + list(CHARACTERS)
ID = {c: i for i, c in enumerate(VOCAB)}

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(VOCAB), "hidden_size": 256,
    "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 32, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
    "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "torch_dtype": "bfloat16", "use_cache": True,
}
# Heads in groups of four, as BitNet b1.58 2B has them.
BITNET_CONFIG = {
    **CONFIG, "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_size": 512, "intermediate_size": 768,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
    "hidden_act": "relu2",
    "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
                            "modules_to_not_convert": None},
}
CONFIGS = {"llama": CONFIG, "bitnet": BITNET_CONFIG}


def encode(text):
    return [ID[c] for c in text]


def decode(ids):
    return "".join(VOCAB[i] for i in ids if i > UNK)


def rope_table(length, dim, theta, device):
    inverse = theta ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * inverse
    return torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Norm(nn.Module):
    def __init__(self, size, c):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(size)), c["rms_norm_eps"]

    def forward(self, x):
        f = x.float()
        return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype) * self.weight


def ternary(weight):
    """-1, 0 and 1, and the number to multiply them with: the mean of the absolute values."""
    scale = weight.abs().mean().clamp_min(1e-5)
    return (weight / scale).round().clamp(-1, 1), scale


class BitLinear(nn.Linear):
    """A product of ternary weights with inputs rounded to a grid of 255 steps, as wide as the largest of a token; gradients
    pass through both roundings. `kept`: the weights are ternary already."""
    kept = False

    def forward(self, x):
        f = x.float()
        step = f.abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127
        f = f + ((f / step).round() * step - f).detach()
        weight = self.weight
        if not self.kept:
            signs, scale = ternary(weight)
            weight = weight + (signs * scale - weight).detach()
        return F.linear(f.to(x.dtype), weight)


def linear(c):
    """Products of a layer of this architecture."""
    return BitLinear if "quantization_config" in c else nn.Linear


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        Linear = linear(c)
        self.q, self.kv, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = Linear(c["hidden_size"], self.q * self.dim, bias=False)
        self.k_proj = Linear(c["hidden_size"], self.kv * self.dim, bias=False)
        self.v_proj = Linear(c["hidden_size"], self.kv * self.dim, bias=False)
        self.o_proj = Linear(self.q * self.dim, c["hidden_size"], bias=False)
        self.attn_sub_norm = Norm(c["hidden_size"], c) if c["model_type"] == "bitnet" else nn.Identity()

    def forward(self, x, cos, sin, mask=None, cache=None, samples=None):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.q, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        k, v = (z.repeat_interleave(self.q // self.kv, 1) for z in (k, v))
        if mask is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)) * self.dim**-0.5
            p = scores.masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num(0.0)
            if samples is not None:
                total = p.float().cumsum(-1)
                total = total / total[..., -1:].clamp_min(1e-30)
                offset = torch.rand(p.shape[:-1] + (1,), device=p.device, dtype=torch.float32)
                edges = (total * samples + offset).floor()
                p = torch.diff(edges, dim=-1, prepend=torch.zeros_like(edges[..., :1])).to(v.dtype) / samples
            out = p @ v
        return self.o_proj(self.attn_sub_norm(out.transpose(1, 2).reshape(b, t, -1)))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        Linear = linear(c)
        self.squared = c["hidden_act"] == "relu2"
        self.gate_proj = Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = Linear(c["intermediate_size"], c["hidden_size"], bias=False)
        self.ffn_sub_norm = Norm(c["intermediate_size"], c) if c["model_type"] == "bitnet" else nn.Identity()

    def forward(self, x):
        gate = self.gate_proj(x)
        gate = F.relu(gate).square() if self.squared else F.silu(gate)
        return self.down_proj(self.ffn_sub_norm(gate * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden_size"], c), Norm(c["hidden_size"], c)
        self.self_attn, self.mlp = Attention(c), Mlp(c)

    def forward(self, x, *attention):
        x = x + self.self_attn(self.input_layernorm(x), *attention)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c=None):
        super().__init__()
        self.c = c = c or CONFIG
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                depth = (2 * c["num_hidden_layers"]) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(p, 0.0, 0.02 * depth)

    def forward(self, ids, cos, sin, mask=None, caches=None, schedule=None):
        x = self.embed_tokens(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, caches and caches[i], schedule and schedule[i])
        return self.norm(x) @ self.embed_tokens.weight.T

    @torch.no_grad()
    def answers(self, questions, schedule=None, max_new_tokens=72, seed=0):
        """Greedy replies to `questions`, all in one left-padded batch; `schedule` samples in prefill and decoding."""
        torch.manual_seed(seed)
        device = self.embed_tokens.weight.device
        prompts = [[BOS] + encode(q + "\n") for q in questions]
        length = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (length - len(p)) + p for p in prompts], device=device)
        real = torch.tensor([[False] * (length - len(p)) + [True] * len(p) for p in prompts], device=device)
        position = (real.long().cumsum(-1) - 1).clamp_min(0)
        cos, sin = rope_table(length + max_new_tokens, self.c["head_dim"], self.c["rope_theta"], device)
        causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        caches = [{} for _ in self.layers]
        logits = self.forward(ids, cos[position][:, None], sin[position][:, None], (causal & real[:, None])[:, None],
                              caches, schedule)[:, -1]
        position, replies = position[:, -1:], []
        done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        for _ in range(max_new_tokens):
            token = logits.argmax(-1).masked_fill(done, PAD)
            replies.append(token)
            done |= token == EOS
            if done.all():
                break
            position = position + 1
            real = torch.cat([real, torch.ones_like(real[:, :1])], 1)
            logits = self.forward(token[:, None], cos[position][:, None], sin[position][:, None],
                                  real[:, None, None], caches, schedule)[:, -1]
        return [decode(r) for r in torch.stack(replies, 1).tolist()]


def accuracy(model, problems, schedule=None, seed=0):
    """Fraction of `problems` whose reply ends in the gold answer."""
    replies = []
    for i in range(0, len(problems), 1000):
        replies += model.answers([p["question"] for p in problems[i:i + 1000]], schedule, seed=1000 * seed + i)
    gold = [p["answer"].split("####")[1].strip() for p in problems]
    return sum("####" in r and r.split("####")[1].strip() == g for r, g in zip(replies, gold)) / len(problems)
