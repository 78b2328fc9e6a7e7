"""Replies to a prompt with a model directory that `allot export --format hf-model` wrote, in Transformers:

    python -m allot_attention DIRECTORY < prompt.txt

The reply is the likeliest token each time, on the CPU. What every layer executed goes to standard error."""

import argparse
import sys

import allot_attention


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allot_attention", description=(__doc__ or "").partition("\n")[0].rstrip(":"))
    parser.add_argument("directory", help="model directory with a schedule in its config.json")
    parser.add_argument("--prompt", help="the prompt; without it standard input")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="longest reply; default 256")
    options = parser.parse_args()
    prompt = sys.stdin.read() if options.prompt is None else options.prompt
    if not prompt.strip():
        parser.error("the prompt is empty; give it on standard input or with --prompt")

    import transformers

    allot_attention.register()
    model = transformers.AutoModelForCausalLM.from_pretrained(options.directory, attn_implementation="allot")
    try:
        allot_attention.check(model)
    except allot_attention.ScheduleError as error:
        sys.exit(f"allot_attention: {error}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.directory)
    tokens = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    reply = model.generate(**tokens, max_new_tokens=options.max_new_tokens, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    print(tokenizer.decode(reply, skip_special_tokens=True))

    done = allot_attention.report(model)
    executed = ",".join("exact" if layer["executed"] is None else f"{layer['executed']:g}" for layer in done["layers"])
    attention = done["conditions"]["attention"]
    unit = attention.get("unit", "samples")
    print(f"{attention['estimator']}, {unit} a layer: {executed} (computed by {done['engine']['computed_by']})", file=sys.stderr)


if __name__ == "__main__":
    main()
