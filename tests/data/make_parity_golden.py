#!/usr/bin/env python3
"""Makes tests/data/parity: small random checkpoints and what transformers computes with them.

Needs torch 2.11.0, transformers 5.17.0 and safetensors. Run from anywhere:

    python tests/data/make_parity_golden.py [CHECKPOINT...]

It makes all checkpoints, or those named; bitnet_* also need accelerate. Each folder is a Hugging Face model directory as save_pretrained writes it (three
are then rewritten to the spelling of transformers 4) plus golden.safetensors:

    ids             I32 [n]           a text of random tokens
    logits          F32 [n, vocab]    its teacher-forced logits, model in float32
    logits_bfloat16 BF16 [n, vocab]   the same, model in bfloat16
    prompts         I32 [total]       ragged prompts, one after the other
    prompt_starts   I32 [count + 1]   where each begins
    greedy          I32 [count, new]  greedy tokens in float32, each prompt generated alone; -1 after the end
    penalised       I32 [count, new]  the same with repetition_penalty 1.3

Checkpoints with ternary weights (bitnet_online, bitnet_packed, bitnet_bitlinear) have shorter texts and replies: inputs of
their products are rounded to eight bits, so that a number within rounding of two of them would decide a step of the grid.
MIN_GRID_MARGIN keeps such numbers out of the text, and TERNARY_MARGIN lets none decide a token.

sampling.json holds what transformers' logits warpers keep of random rows. Where the two best logits of a step are closer
than MIN_MARGIN, rounding would decide the token; such a model is made again from the next seed.
"""

import json
import os
import pathlib
import shutil
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # transformers compiles small functions of BitNet, which takes longer than they do

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BitNetConfig,
    BitNetForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

OUT = pathlib.Path(__file__).resolve().parent / "parity"
VOCAB = 96
EOS = 1
NEW_TOKENS = 64
PROMPT_LENGTHS = [1, 5, 17, 33, 48]
MIN_MARGIN = 5e-4
# Of checkpoints with ternary weights.
TERNARY_TEXT = 40
TERNARY_NEW_TOKENS = 16
TERNARY_MARGIN = 0.05
MIN_GRID_MARGIN = 2e-6  # distance from the middle of two steps, as a part of the largest


class CloseCall(Exception):
    """Two logits of a step, or two steps of a grid, are too close to compare results."""


COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=512, eos_token_id=EOS, bos_token_id=0,
              pad_token_id=None, rms_norm_eps=1e-5)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# name: (model class, config, stored dtype, save_pretrained arguments, first seed)
CASES = {
    "llama_group4": (LlamaForCausalLM,
                     LlamaConfig(hidden_size=64, intermediate_size=72, num_attention_heads=8, num_key_value_heads=2,
                                 **COMMON), torch.bfloat16, {}, 1),
    "llama_tied": (LlamaForCausalLM,
                   LlamaConfig(hidden_size=32, intermediate_size=56, num_attention_heads=2, num_key_value_heads=2,
                               tie_word_embeddings=True, **{**COMMON, "num_hidden_layers": 3}), torch.float16, {}, 2),
    "llama_rope_head24": (LlamaForCausalLM,
                          LlamaConfig(hidden_size=40, intermediate_size=48, num_attention_heads=4,
                                      num_key_value_heads=1, head_dim=24, rope_parameters=LLAMA3_ROPE, **COMMON),
                          torch.float32, {}, 3),
    "llama_bias_sharded": (LlamaForCausalLM,
                           LlamaConfig(hidden_size=48, intermediate_size=56, num_attention_heads=6,
                                       num_key_value_heads=3, attention_bias=True, mlp_bias=True, **COMMON),
                           torch.bfloat16, {"max_shard_size": "20KB"}, 4),
    "qwen2_group7": (Qwen2ForCausalLM,
                     Qwen2Config(hidden_size=56, intermediate_size=64, num_attention_heads=7, num_key_value_heads=1,
                                 rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON),
                     torch.bfloat16, {}, 5),
    "qwen3_group4_tied": (Qwen3ForCausalLM,
                          Qwen3Config(hidden_size=48, intermediate_size=56, num_attention_heads=8,
                                      num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, **COMMON),
                          torch.bfloat16, {}, 6),
    "qwen3_rope_bias": (Qwen3ForCausalLM,
                        Qwen3Config(hidden_size=40, intermediate_size=48, num_attention_heads=3,
                                    num_key_value_heads=3, head_dim=24, attention_bias=True,
                                    rope_parameters=LLAMA3_ROPE, **COMMON),
                        torch.float16, {}, 7),
    "mistral_group7": (MistralForCausalLM,
                       MistralConfig(hidden_size=56, intermediate_size=64, num_attention_heads=7,
                                     num_key_value_heads=1, sliding_window=None,
                                     rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON),
                       torch.float32, {}, 8),
    # A window over all positions hides none of them.
    "mistral_window_sharded": (MistralForCausalLM,
                               MistralConfig(hidden_size=48, intermediate_size=56, num_attention_heads=4,
                                             num_key_value_heads=1, head_dim=16, sliding_window=512,
                                             tie_word_embeddings=True, **COMMON),
                               torch.bfloat16, {"max_shard_size": "20KB"}, 9),
    # Heads of a size that the CUDA kernels have.
    "llama_head64": (LlamaForCausalLM,
                     LlamaConfig(hidden_size=64, intermediate_size=72, num_attention_heads=4, num_key_value_heads=1,
                                 head_dim=64, rope_parameters=LLAMA3_ROPE, **COMMON), torch.bfloat16, {}, 10),
    "qwen2_head64_group7": (Qwen2ForCausalLM,
                            Qwen2Config(hidden_size=48, intermediate_size=64, num_attention_heads=7,
                                        num_key_value_heads=1, head_dim=64, tie_word_embeddings=True,
                                        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON),
                            torch.bfloat16, {}, 11),
    "qwen3_head128": (Qwen3ForCausalLM,
                      Qwen3Config(hidden_size=48, intermediate_size=56, num_attention_heads=2, num_key_value_heads=1,
                                  head_dim=128, **COMMON), torch.bfloat16, {}, 12),
    "mistral_head64_group1": (MistralForCausalLM,
                              MistralConfig(hidden_size=64, intermediate_size=72, num_attention_heads=2,
                                            num_key_value_heads=2, head_dim=64, sliding_window=None, **COMMON),
                              torch.bfloat16, {}, 13),
    # Squared ReLU and norms before o and down. Full weights; ternary ones as full numbers that are rounded when used,
    # packed with a factor, and packed with a divisor.
    "bitnet_head64_group2": (BitNetForCausalLM,
                             BitNetConfig(hidden_size=128, intermediate_size=88, num_attention_heads=2,
                                          num_key_value_heads=1, tie_word_embeddings=True, **COMMON),
                             torch.bfloat16, {}, 14),
    "bitnet_bias": (BitNetForCausalLM,
                    BitNetConfig(hidden_size=48, intermediate_size=56, num_attention_heads=3, num_key_value_heads=3,
                                 attention_bias=True, **COMMON), torch.float32, {}, 15),
    **{
        f"bitnet_{name}": (BitNetForCausalLM,
                           BitNetConfig(hidden_size=64, intermediate_size=72, num_attention_heads=heads,
                                        num_key_value_heads=1, tie_word_embeddings=True, **COMMON), dtype, {}, seed)
        for name, heads, dtype, seed in (("online", 1, torch.bfloat16, 16), ("packed", 1, torch.bfloat16, 17),
                                         ("bitlinear", 4, torch.bfloat16, 18))
    },
}
TERNARY = {
    "bitnet_online": {"linear_class": "autobitlinear", "quantization_mode": "online"},
    "bitnet_packed": {"linear_class": "autobitlinear", "quantization_mode": "offline"},
    "bitnet_bitlinear": {"linear_class": "bitlinear"},
}


def randomise(model, generator):
    """Weights large enough that logits differ by more than rounding and every norm, bias and gate matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(1.2 * noise / parameter.shape[1] ** 0.5)


def make_ternary(folder, quantization):
    """Makes a checkpoint of full weights one with ternary weights, as published ones are stored."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "bitnet", "modules_to_not_convert": None, **quantization}
    path.write_text(json.dumps(config, indent=2) + "\n")
    if quantization.get("quantization_mode") == "online":
        return
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if name.endswith("_proj.weight")]:
        mean = state[name].float().abs().mean()
        signs = (state[name].float() / mean).round().clamp(-1, 1)
        state[name] = pack_weights(signs)
        scale = 1 / mean if quantization["linear_class"] == "bitlinear" else mean
        state[name + "_scale"] = scale.reshape(1).to(torch.bfloat16)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def watch_grids(model):
    """A list of one number: how near an input of a ternary product came to the middle of two steps."""
    nearest = [1.0]

    def look(module, inputs):
        x = inputs[0].float()
        steps = x * (127 / x.abs().amax(-1, keepdim=True).clamp_min(1e-5))
        distance = ((steps - steps.floor()) - 0.5).abs() / steps.abs().clamp_min(1)
        nearest[0] = min(nearest[0], distance.min().item())

    for module in model.modules():
        if isinstance(module, (AutoBitLinear, BitLinear)):
            module.register_forward_pre_hook(look)
    return nearest


def generate(model, prompt, new_tokens, margin, **kwargs):
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=new_tokens, output_logits=True,
                         output_scores=True, return_dict_in_generate=True, pad_token_id=0, **kwargs)
    for scores in out.scores:
        best = scores[0].topk(2).values
        if best[0] - best[1] < margin:
            raise CloseCall
    tokens = out.sequences[0, len(prompt):].tolist()
    return tokens + [-1] * (new_tokens - len(tokens))


def to_transformers_4(folder):
    """Spells rope and dtype as checkpoints from before transformers 5 do."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_case(name, model_class, config, dtype, save_arguments, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config)
    randomise(model, generator)
    model.to(dtype).save_pretrained(folder, **save_arguments)
    if name in ("llama_rope_head24", "qwen2_group7", "mistral_group7"):
        to_transformers_4(folder)

    if name in TERNARY:
        make_ternary(folder, TERNARY[name])
    length, new_tokens, margin = ((TERNARY_TEXT, TERNARY_NEW_TOKENS, TERNARY_MARGIN) if name in TERNARY else
                                  (120, NEW_TOKENS, MIN_MARGIN))

    text = torch.randint(2, VOCAB, (length,), generator=generator)
    prompts = [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    golden = {"ids": text.to(torch.int32)}
    for key, load_dtype in (("logits", torch.float32), ("logits_bfloat16", torch.bfloat16)):
        model = model_class.from_pretrained(folder, dtype=load_dtype, attn_implementation="eager").eval()
        nearest = watch_grids(model)
        with torch.no_grad():
            golden[key] = model(text[None]).logits[0].to(load_dtype).contiguous()
        if load_dtype == torch.float32:
            if nearest[0] < MIN_GRID_MARGIN:
                raise CloseCall
            golden["greedy"] = torch.tensor([generate(model, p, new_tokens, margin) for p in prompts],
                                            dtype=torch.int32)
            golden["penalised"] = torch.tensor(
                [generate(model, p, new_tokens, margin, repetition_penalty=1.3) for p in prompts], dtype=torch.int32)
    golden["prompts"] = torch.tensor(sum(prompts, []), dtype=torch.int32)
    starts = [0]
    for prompt in prompts:
        starts.append(starts[-1] + len(prompt))
    golden["prompt_starts"] = torch.tensor(starts, dtype=torch.int32)
    save_file(golden, folder / "golden.safetensors")
    print(name, "seed", seed, "greedy lengths", [sum(t >= 0 for t in row) for row in golden["greedy"].tolist()])


def make_sampling():
    """Rows of logits, the parameters, and the probabilities transformers leaves (0 for what it removes)."""
    generator = torch.Generator().manual_seed(7)
    cases = []
    for temperature, top_p, penalty in ((1.0, 0.9, 1.0), (0.7, 0.5, 1.0), (1.5, 0.95, 1.4), (1.0, 1.0, 1.2),
                                        (0.6, 0.05, 1.0)):
        logits = 2 * torch.randn(1, 20, generator=generator)
        seen = torch.randint(0, 20, (1, 6), generator=generator)
        scores = RepetitionPenaltyLogitsProcessor(penalty)(seen, logits.clone())
        scores = TemperatureLogitsWarper(temperature)(seen, scores)
        if top_p < 1:
            scores = TopPLogitsWarper(top_p)(seen, scores)
        cases.append({"temperature": temperature, "top_p": top_p, "repetition_penalty": penalty,
                      "seen": sorted(set(seen[0].tolist())), "logits": logits[0].tolist(),
                      "probabilities": torch.softmax(scores[0], -1).tolist()})
    (OUT / "sampling.json").write_text(json.dumps(cases, indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        *case, seed = CASES[name]
        while True:
            try:
                make_case(name, *case, seed)
                break
            except CloseCall:
                seed += 100
    if len(sys.argv) == 1:
        make_sampling()


if __name__ == "__main__":
    main()
