"""Makes tests/data/tokenizer/*.json: small tokenizers and what the `tokenizers` package does with hard texts.

    pip install tokenizers==0.23.3
    python tests/data/make_tokenizer_golden.py

Each file holds a whole tokenizer.json under "tokenizer" and, under "cases", texts with
  ids               with what the post-processor adds
  plain_ids         without it; absent where equal to ids
  decoded           text of the ids without special tokens; absent where equal to the text
  decoded_all       the same with special tokens; absent where equal to decoded
  decoded_reversed  text of the plain ids in reverse order, which cuts characters apart; only for texts beyond ASCII
words.json and components.json hold single components with what goes in and what comes out.
All training text and most texts are made from seeds. nfc.json has texts beside their NFC, classes.json the code points of
classes of regular expressions.
The patterns are those that the tokenizer.json files of Llama 3 and Qwen2 publish.
"""

import json
import pathlib
import random

import tokenizers
from fuzz_tokenizer import random_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "tokenizer"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

WORDS = ("the a of to and is was that for with on as at by from they have this her his when where how many total each "
         "apples books hours dollars kilometres friends received unreceived rereading running runner antidisestablish "
         "don't she's I'll we've you'd they're it's HELLO Hello naïve café cafe\u0301 Ångström straße Привет мир 你好 世界 "
         "こんにちは 안녕 नमस्ते مرحبا ½ ² 12 345 6789 3.14 1,234.50 $18 50% x=y+z foo_bar() #include <stdio.h> \U0001F600 "
         "\U0001F468\u200D\U0001F469\u200D\U0001F467").split(" ")

HARD = [
    "", " ", "  ", "a", " a", "a ", "\n", "\r\n", "\n\n\n", "\t", " \n ", "   leading", "trailing   ", "a  b   c    d",
    "line one\nline two\r\nline three\n\n\nline four", " \n \n x", "tabs\t\tand\t spaces \t", "a" * 40, "ab" * 33,
    " " * 50 + "x" + " " * 17, "don't DON'T I'LL we'Ve 'tis ''s 'S'T \u2019s", "it'\u017f K'\u212a",
    "0 1 12 123 1234 12345 1234567890 1,234.50 3.14159 -0.5e-7", "\u0661\u0662\u0663 \u00bd \u00b2 \u2167 \u3007",
    "Hello, world! How many apples?", "x=y+z; foo_bar(baz)[3] // #!/bin/sh \\n {}<>|~^`@",
    "\U0001F600\U0001F601 \U0001F468\u200D\U0001F469\u200D\U0001F467 \U0001F1E9\U0001F1EA \u2764\ufe0f",
    "cafe\u0301 caf\u00e9 A\u030angstro\u0308m e\u0301\u0327 \u1e9b\u0323 \u0344 \u2126 \u212b \uac00 \u1100\u1161",
    "q\u0307\u0323 q\u0323\u0307 \u0958 \ufb01 \uff21 \u0301alone",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947",
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u0085g\u180eh\ufeffi", "\x00\x01\x7f\x1b[0m", "\u00ad soft\u00adhyphen",
    "\U00020000\U0002A6D6 \U0001D4D0 \U000E0041", "\ufffd \uffff \U0010FFFF",
    "<s>", "</s>", "<s>Hello</s>", "a<s>b", "a <s> b", "<s><s> </s>", "< s>", "<s", "<|x|>", "<|x|><|xy|><|x", "<|x|>|>", "a<\u4e16 x>b \u4e16",
    "thing something thing. thingthing thing", "  <mask>  x<mask>y", "<strip>  z  <strip>", "NORM norm Norm\u0301",
    "\u212bngstr \u00c5ngstr A\u030angstr", "rereading unreceived antidisestablishmentarianism",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.\n#### 72",
]

ADDED = [
    AddedToken("<|x|>", special=True), AddedToken("<|x|>|>", special=True), AddedToken("thing", single_word=True),
    AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("<strip>", rstrip=True, normalized=False),
    AddedToken("\u212bngstr", normalized=True), AddedToken("NORM", lstrip=True, rstrip=True, single_word=True),
    AddedToken("<\u4e16 x>", normalized=False),
]


def sentences(seed, count):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) + rng.choice([".", "!", "\n", "?\n\n"]) for _ in range(count)]


def random_texts(seed, count):
    """Strings over characters of many classes, so that every rule of a pattern meets every other."""
    rng = random.Random(seed)
    alphabet = list("abEs'  \n\r\t.,!<>|0129") + ["\u00e9", "e\u0301", "\u4e16", "\U0001F600", "\u00a0", "'s", "'LL", "</s>",
                                                 "<|x|>", "\u0301", "\u0663", "\u2028", "ing", "re"]
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 30))) for _ in range(count)]


def write(name, tokenizer, texts, about):
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if name != "added" and "<s>" not in added:
        tokenizer.add_special_tokens(["<s>", "</s>"])
    if len(texts) > len(HARD) // 2:
        rng = random.Random(name)
        texts = texts + [random_text(rng) for _ in range(30)]
    cases = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids)
        decoded_all = tokenizer.decode(ids, skip_special_tokens=False)
        case = {"text": text, "ids": ids}
        if plain != ids:
            case["plain_ids"] = plain
        if decoded != text:
            case["decoded"] = decoded
        if decoded_all != decoded:
            case["decoded_all"] = decoded_all
        if not text.isascii():
            case["decoded_reversed"] = tokenizer.decode(plain[::-1])
        cases.append(case)
    head = {"origin": f"make_tokenizer_golden.py, tokenizers {tokenizers.__version__}", "about": about,
            "vocab_size": tokenizer.get_vocab_size(), "tokenizer": json.loads(tokenizer.to_str())}
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / f"{name}.json").write_text(json.dumps(head)[:-1] + ',\n "cases": [\n' + lines + "\n]}\n")


def template(tokenizer, single):
    return processors.TemplateProcessing(
        single=single, special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>") if token in single])


def byte_level_bpe(split, normalizer, ignore_merges, seed):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(sentences(seed, 400), trainer)
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def edit(tokenizer, change):
    """The tokenizer after a change of its JSON, for forms that the package itself no longer writes."""
    document = json.loads(tokenizer.to_str())
    change(document)
    return Tokenizer.from_str(json.dumps(document))


def make_byte_level():
    llama3 = byte_level_bpe(split_then_bytes(LLAMA3), None, True, 1)

    # Tokens that no sequence of merges makes, which only ignore_merges reaches.
    def add_whole_words(document):
        vocab = document["model"]["vocab"]
        for word in ("\u0120rereading", "\u0120antidisestablishmentarianism", "aaaaaaaa"):
            vocab.setdefault(word, len(vocab))

    llama3 = edit(llama3, add_whole_words)
    llama3.add_special_tokens(["<s>", "</s>"])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(llama3, "<s> $A")])
    write("llama3", llama3, HARD + random_texts(11, 30), "byte-level BPE, pattern of Llama 3, ignore_merges")

    qwen2 = byte_level_bpe(split_then_bytes(QWEN2), normalizers.NFC(), False, 2)
    qwen2.post_processor = processors.ByteLevel(trim_offsets=False)
    write("qwen2", qwen2, HARD + random_texts(12, 30), "byte-level BPE, pattern of Qwen2, NFC")

    gpt2 = byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), None, False, 3)
    gpt2.add_special_tokens(["<s>", "</s>"])
    gpt2.post_processor = template(gpt2, "<s> $A </s>")
    write("gpt2", gpt2, HARD + random_texts(13, 10), "byte-level BPE, ByteLevel's own pattern and prefix space")

    added = byte_level_bpe(split_then_bytes(QWEN2), normalizers.NFC(), False, 4)
    added.add_tokens(ADDED)
    write("added", added, HARD + random_texts(14, 20), "added tokens with every option, NFC")


def make_character_bpe():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    specials = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, limit_alphabet=60, show_progress=False)
    tokenizer.train_from_iterator(sentences(5, 300), trainer)
    for name, fallback, fuse in (("fallback", True, True), ("fused_unk", False, True), ("unk", False, False)):
        def change(document, fallback=fallback, fuse=fuse):
            document["model"]["byte_fallback"] = fallback
            document["model"]["fuse_unk"] = fuse
            document["added_tokens"] = []
            if not fallback:  # merges as in files of older versions
                document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
        texts = HARD if fallback else HARD[:1] + HARD[24:36]
        write(name, edit(tokenizer, change), texts, "BPE over characters")


def make_characters():
    vocab = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>"])}
    for character in "\n" + "".join(map(chr, range(32, 127))) + "\u00e9\u00bd":
        vocab.setdefault(character, len(vocab))
    for name, pattern in (("characters", Regex(r"[\s\S]")), ("characters_dot", Regex(".")), ("characters_empty", "")):
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(["<pad>", "<s>", "</s>", "<unk>"])
        tokenizer.post_processor = template(tokenizer, "<s> $A")
        write(name, tokenizer, HARD + random_texts(15, 10) if name == "characters" else HARD[:12], "one token a character")


SPACE = "\u2581"  # how SentencePiece writes a space
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# What these tokenizers tell apart: spaces at both ends and around added tokens, the character for a space, texts of byte tokens.
SPACED = [
    "", " ", "  ", "a", " a", "a ", "Hello, world! How many apples?", "   leading", "trailing   ", "a  b   c", " \n a\n\n b", SPACE,
    f"{SPACE}a", f" {SPACE} ", "<s>", "<s>a", "<s> a", " <s>a", "a<s>b", "a <s> b", "</s><s>", "a<mask>b", "  <mask> b", "a thing b",
    "<0x41>", "caf\u00e9 e\u0301", "\u4f60\u597d \u4e16\u754c", "\U0001F600 \U0001F468\u200D\U0001F469",
    "  a", "\n", "\tx", f"a{SPACE} b", "<s>  </s>", " <mask> b", "  <mask>", "thing", "nothing things", " thing", "<0x0A>b",
    "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "a\u00a0b\u3000c", "\x00\x01\x7f", "rereading unreceived 1,234.50",
    "Natalia sold clips to 48 of her friends in April.\n#### 72",
]


def character_bpe(seed, specials=(), **model):
    """BPE over characters whose merges stay within words, as SentencePiece trains it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", *specials], show_progress=False)
    # Most characters are left to the byte tokens. A limit_alphabet would take other ones each time.
    latin = ["".join(c for c in sentence if c < "\u0100") for sentence in sentences(seed, 300)]
    tokenizer.train_from_iterator(latin, trainer)

    def keep_no_added(document):
        document["added_tokens"] = []

    return edit(tokenizer, keep_no_added)


def strip_first_space(*steps):
    return decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)])


def make_sentence_piece():
    """The forms in which Llama 2, Mistral, Phi-3 and Gemma write what SentencePiece trained, and Metaspace's own."""
    space, fallback, fuse = decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()
    spaces = normalizers.Replace(" ", SPACE)
    specials = [AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")]
    mask = AddedToken("<mask>", lstrip=True, rstrip=True, special=True, normalized=False)
    thing = AddedToken("thing", single_word=True, normalized=True)

    def tokenizer(seed, normalizer, pre_tokenizer, decoder, added=specials):
        result = character_bpe(seed, ["<s>", "</s>", *BYTES], byte_fallback=True)
        if normalizer is not None:
            result.normalizer = normalizer
        result.pre_tokenizer = pre_tokenizer
        result.decoder = decoder
        result.add_tokens(added)
        result.post_processor = template(result, "<s> $A")
        return result

    prepend_and_replace = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    mistral = tokenizer(21, prepend_and_replace, None, strip_first_space(space, fallback, fuse))
    write("mistral", mistral, SPACED, "normalizer Prepend and Replace; Mistral 0.1, Llama 2, Phi-3")
    # Special tokens that the normalizer changes, as in files of older versions: they are found only where it changes a text so.
    older = [AddedToken("<s>", special=True, normalized=True), AddedToken("</s>", special=True, normalized=True), mask, thing]
    llama2 = tokenizer(22, prepend_and_replace, None, strip_first_space(space, fallback, fuse), older)
    write("llama2", llama2, SPACED[:28], "the same with added tokens that are normalized, special ones too")
    first = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    newer = tokenizer(23, None, first, strip_first_space(space, fallback, fuse), [*specials, mask, thing])
    write("first", newer, SPACED, "Metaspace that prepends to the first section; Mistral 0.3, Llama 2 written by transformers 5")
    gguf = tokenizer(24, None, None, strip_first_space(fallback, fuse, space),
                     [*specials, AddedToken("<mask>", rstrip=True, special=True)])
    write("phi3", gguf, SPACED[:28], "no normalizer; Phi-3's GGUF written by transformers")
    gemma = tokenizer(25, spaces, pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence([space, fallback, fuse]),
                      [*specials, AddedToken("\n\n", normalized=False)])
    write("gemma", gemma, SPACED[:28], "normalizer Replace, Split on a space that no text has any more; Gemma")
    for scheme, split in (("always", True), ("never", True), ("first", True), ("always", False)):
        name = f"metaspace_{scheme}{'' if split else '_whole'}"
        result = character_bpe(26)
        result.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)
        result.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme, split=split)
        result.add_tokens([*specials, mask, thing])
        write(name, result, SPACED[:28], "Metaspace as pre-tokenizer and decoder")


def make_byte_level_fallback():
    """Byte-level vocabularies that lack bytes, with byte_fallback: what transformers writes for GGUF files of SmolLM2."""
    def lacking(document, unk, byte_tokens):
        model, lacks = document["model"], set("\u0100\u0106\u011d\u0142\u00e5\u00f1z")
        kept = [merge for merge in model["merges"] if not lacks & set("".join(merge))]
        tokens = ["<unk>", *byte_tokens, *(token for token in model["vocab"] if not lacks & set(token))]
        vocab = {token: i for i, token in enumerate(tokens)}
        model.update(vocab=vocab, merges=kept, unk_token=unk, fuse_unk=True, byte_fallback=True)

    sequence = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(SPACE, " "), decoders.ByteLevel()]
    texts = SPACED + ["z", "zz", "aza zzb", "\x00z\x06", "\u00e5\u4f60", "\U0001F600z\u3042"]
    # The bytes of the alphabet's characters for a missing NUL and z: the first can be written, the second cannot.
    for name, unk, byte_tokens in (("smollm2", "<unk>", []), ("level_without_unk", None, []),
                                   ("level_fallback", "<unk>", BYTES[0x80:])):
        tokenizer = byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, 27)
        tokenizer = edit(tokenizer, lambda document, unk=unk, byte_tokens=byte_tokens: lacking(document, unk, byte_tokens))
        tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.decoder = decoders.Sequence(sequence)
        tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
        some = texts if name == "smollm2" else texts[-6:] + SPACED[14:28]
        write(name, tokenizer, some, "byte-level BPE that lacks bytes, byte_fallback")


def make_words():
    """Every cutting rule, seen through a vocabulary that its own pieces of the texts make."""
    class_pattern = r"\w+|\b[^\w\s]\h?|\d{2}"
    components = {
        "whitespace": pre_tokenizers.Whitespace(),
        "whitespace_split": pre_tokenizers.WhitespaceSplit(),
        "digits": pre_tokenizers.Digits(False),
        "no_pieces": None,
        "classes": pre_tokenizers.Split(Regex(class_pattern), "isolated"),
        "lines": pre_tokenizers.Split(Regex(r"^\s*|[!?.]$"), "isolated"),
        "empty_matches": pre_tokenizers.Split(Regex("a*"), "merged_with_previous"),
        "scripts": pre_tokenizers.Split(Regex(r"[\p{Han}\p{Hiragana}]+|\p{^Lu}"), "contiguous"),
        "sequence": pre_tokenizers.Sequence([pre_tokenizers.Split("e", "merged_with_next"), pre_tokenizers.Digits(True),
                                             pre_tokenizers.Split(Regex(r"\s"), "removed")]),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            components[f"{behavior}{'_inverted' if invert else ''}"] = pre_tokenizers.Split(Regex(r"[aeiou ]|\d\d"), behavior, invert)
    texts = HARD[:23:2] + HARD[22:31:2] + HARD[-1:]
    documents = []
    for name, component in components.items():
        tokenizer = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
        if component is not None:
            tokenizer.pre_tokenizer = component
        trainer = trainers.WordLevelTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        cases = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
        if name == "whitespace":  # without a decoder tokens are joined by spaces
            cases = [case | {"decoded": tokenizer.decode(case["ids"])} for case in cases]
        documents.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases})
    lines = ",\n".join("  " + json.dumps(document) for document in documents)
    origin = json.dumps(f"make_tokenizer_golden.py, tokenizers {tokenizers.__version__}")
    (OUT / "words.json").write_text(f'{{"origin": {origin},\n "components": [\n{lines}\n]}}\n')


def make_components():
    """Normalizers, pre-tokenizers and decoders by themselves: [what goes in, what comes out]."""
    texts = SPACED + ["aaa", "aaaa", "a.b. ll lll", "ee\u0323 \u1e9b\u0323"]
    replace = normalizers.Replace
    changes = {
        "prepend": normalizers.Prepend(SPACE), "prepend_two": normalizers.Prepend("ab"), "prepend_nothing": normalizers.Prepend(""),
        "replace": replace(" ", SPACE), "replace_long": replace("  ", "_"), "replace_overlapping": replace("ll", "l"),
        "replace_by_nothing": replace("a", ""), "replace_by_itself": replace("a", "a$0a"), "replace_special": replace(".", "*"),
        "nfc_last": normalizers.Sequence([replace("e", "e\u0301"), normalizers.NFC()]),
        "sequence": normalizers.Sequence([normalizers.Prepend(" "), normalizers.Sequence([replace(" ", "_"), replace("__", SPACE)]),
                                          normalizers.NFC(), normalizers.Prepend("<")]),
        "empty": normalizers.Sequence([]),
    }
    pieces = {f"{scheme}{'' if split else '_whole'}": pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)
              for scheme in ("always", "first", "never") for split in (True, False)}
    pieces |= {
        "ascii": pre_tokenizers.Metaspace("_", prepend_scheme="always", split=True),
        "behind": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]),
        "before": pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(True)]),
        "two": pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
                                        pre_tokenizers.Metaspace("a", prepend_scheme="always")]),
    }
    fallback, fuse, level, strip, space = (decoders.ByteFallback(), decoders.Fuse(), decoders.ByteLevel(), decoders.Strip,
                                           decoders.Replace(SPACE, " "))
    joins = {
        "mistral": [space, fallback, fuse, strip(" ", 1, 0)], "phi3": [fallback, fuse, space, strip(" ", 1, 0)],
        "smollm2": [fallback, fuse, space, level], "level_first": [level, fallback, fuse], "fallback": [fallback],
        "fallback_behind_fuse": [fuse, fallback], "fallback_twice": [fallback, decoders.Replace("A", "<0x42>"), fallback],
        "strip_each": [strip(" ", 1, 0), strip("a", 2, 0)], "strip_right": [strip("a", 0, 1)], "strip_both": [strip(" ", 1, 1), fuse],
        "strip_many": [fuse, strip(SPACE, 9, 0)], "replace_each": [decoders.Replace("ab", "b"), fuse, decoders.Replace("ab", "b")],
        "always": [decoders.Metaspace(SPACE, "always")], "never": [decoders.Metaspace(SPACE, "never")],
        "first": [decoders.Metaspace(SPACE, "first"), fallback], "metaspace_behind_fuse": [fuse, decoders.Metaspace(SPACE, "always")],
        "metaspace_ascii": [decoders.Metaspace("a", "always"), level],
    }
    rng = random.Random(28)
    byte_tokens = [f"<0x{byte}>" for byte in ("41", "0A", "E4", "BD", "A0", "a0", "C3", "FF", "+A", "-1", "G0", "1", " 1")]
    words = ["a", "ab", "b", "aab", " a", "a ", "  b ", SPACE, f"{SPACE}a", f"{SPACE}{SPACE}b", f"a{SPACE}b", "\u0120a",
             "\u00e4\u00bd\u0142", "\u00e9", "\u4f60", "\n", "<s>", "A", "", *byte_tokens]
    lists = [[], [""], [" "], [SPACE], [" a"], [SPACE, SPACE, "a"]]
    lists += [[rng.choice(words) for _ in range(rng.randrange(1, 10))] for _ in range(24)]

    def decode(decoder, tokens):
        try:
            return [[tokens, decoder.decode(tokens)]]
        except BaseException:  # a Strip that would take a character twice ends in a Rust panic
            return []

    groups = {"normalizers": [], "pre_tokenizers": [], "decoders": []}
    for name, component in changes.items():
        groups["normalizers"].append([name, component, [[text, component.normalize_str(text)] for text in texts]])
    for name, component in pieces.items():
        cut = [[text, [piece for piece, _ in component.pre_tokenize_str(text)]] for text in texts]
        groups["pre_tokenizers"].append([name, component, cut])
    for name, steps in joins.items():
        component = decoders.Sequence(steps)
        groups["decoders"].append([name, component, [case for tokens in lists for case in decode(component, tokens)]])
    parts = []
    for group, entries in groups.items():
        lines = ",\n".join("  " + json.dumps({"name": name, "component": json.loads(component.__getstate__()), "cases": cases})
                            for name, component, cases in entries)
        parts.append(f'"{group}": [\n{lines}\n]')
    origin = json.dumps(f"make_tokenizer_golden.py, tokenizers {tokenizers.__version__}")
    (OUT / "components.json").write_text(f'{{"origin": {origin},\n ' + ",\n ".join(parts) + "}\n")


def runs_of(numbers):
    runs = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def make_classes():
    """Which of a spread of code points Oniguruma's classes hold, as runs [first, last]."""
    code_points = [*range(0x0600), *range(0x1680, 0x1690), *range(0x1800, 0x1820), *range(0x2000, 0x2100),
                   *range(0x2150, 0x2190), *range(0x3000, 0x3100)]
    classes = {}
    for pattern in (r"\s", r"\S", r"\w", r"\W", r"\d", r"\h", r"\v", r"\p{L}", r"\p{N}", r"\p{^M}", r"\P{Lu}", ".", r"[^\w\s]",
                    r"[\h_]", r"[\w.]", r"\p{Han}", r"(?i:s)", r"(?i:k)"):
        splitter = pre_tokenizers.Split(Regex(pattern), "removed")
        classes[pattern] = runs_of([c for c in code_points if not splitter.pre_tokenize_str(chr(c))])
    every_code_point = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    everywhere = {}
    for pattern in (r"\p{L}", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}", r"\s", r"\w",
                    r"\d"):
        splitter = pre_tokenizers.Split(Regex(pattern), "removed")
        everywhere[pattern] = runs_of([c for c in every_code_point if not splitter.pre_tokenize_str(chr(c))])
    origin = f"make_tokenizer_golden.py, tokenizers {tokenizers.__version__}"
    (OUT / "classes.json").write_text(json.dumps({"origin": origin, "code_points": runs_of(code_points), "classes": classes,
                                                  "everywhere": everywhere}) + "\n")


# Marks that Unicode reordered after version 9, of which the package's normalizer knows none, by the ends of their runs.
LATE_MARKS = ("07fd 0898 089f 08ca 08d3 09fe 0c3c 0d3b 0d3c 0eba 1715 1abf 1ace 1df6 1dfa a82c 10d24 10d27 10eab 10eac 10efd "
              "10eff 10f46 10f50 10f82 10f85 11070 1133b 1145e 11839 1183a 11930 1193d 1193e 11943 119e0 11a34 11a47 11a99 11d42 "
              "11d44 11d45 11d97 11f41 11f42 16ff0 16ff1 1e08f 1e130 1e136 1e2ae 1e2ec 1e2ef 1e4ec 1e4ef")


def make_nfc():
    """Texts whose NFC the package makes, [text, its NFC]."""
    rng = random.Random(9)
    texts = [text for text in HARD if not text.isascii()]
    for mark in (chr(int(code, 16)) for code in LATE_MARKS.split()):
        texts += [f"q{mark}\u0334{mark}", f"q\u0345{mark}\u0323", f"\u00e9{mark}\u0301", f"\U00011935{mark}"]
    marks = [chr(c) for c in (0x300, 0x301, 0x307, 0x308, 0x323, 0x327, 0x334, 0x345, 0x3099, 0x94D, 0x93C, 0x1161, 0x11A8)]
    bases = [*"aeoqxAKS ", *"\u00e9\u1ea5\u03b1\u1f80\u0438\u0915\u0958\u304b\u304c\u1100\uac00\uac01\u4f60\uf900\u212b\u1e9b"]
    for _ in range(300):
        texts.append("".join(rng.choice(marks if rng.random() < 0.6 else bases) for _ in range(rng.randrange(1, 14))))
    nfc = normalizers.NFC()
    lines = ",\n".join("  " + json.dumps([text, nfc.normalize_str(text)]) for text in texts)
    origin = json.dumps(f"make_tokenizer_golden.py, tokenizers {tokenizers.__version__}")
    (OUT / "nfc.json").write_text(f'{{"origin": {origin},\n "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    make_byte_level()
    make_character_bpe()
    make_characters()
    make_sentence_piece()
    make_byte_level_fallback()
    make_components()
    make_words()
    make_classes()
    make_nfc()
