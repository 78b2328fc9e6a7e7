"""Makes tests/data/chat: chat templates of model families, and what transformers renders with them.

    pip install transformers==5.17.0 jinja2==3.1.6
    pip download --no-deps trl==1.16.0 axolotl==0.19.0
    python tests/data/make_chat_golden.py WHEELS MODEL

WHEELS is the folder of the two downloaded wheels, both under the Apache License 2.0 and from PyPI: they carry copies of the
templates that the models ship. MODEL is the directory of HuggingFaceTB/SmolLM2-135M-Instruct (Apache License 2.0).

*.jinja        the templates as they are; qwen2 is made of SmolLM2's, as said at its default message
expected.json  conversations, and for each template: its special tokens and the text of each conversation with and without
               add_generation_prompt, null where the template refuses it. Made by transformers' own
               render_jinja_template, which apply_chat_template calls, on 26 July 2024.
language.json  small templates and the text that the same environment gives, null where Jinja refuses.
"""

import datetime
import itertools
import json
import pathlib
import sys
import zipfile

import jinja2
from transformers.utils import chat_template_utils

OUT = pathlib.Path(__file__).parent / "chat"
TRL = "trl/chat_templates/"
AXOLOTL = "axolotl/utils/chat_templates/templates/"
LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
MISTRAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEMPLATES = {
    "llama3": (TRL + "llama3.jinja", LLAMA),
    "llama3_1": (TRL + "llama3_1.jinja", LLAMA),
    "llama3_2": (TRL + "llama3_2.jinja", LLAMA),
    "qwen2": (None, QWEN),
    "qwen2_5": (TRL + "qwen2_5.jinja", QWEN),
    "qwen3": (TRL + "qwen3.jinja", QWEN),
    "qwen3_2507": (TRL + "qwen3_instruct_2507.jinja", QWEN),
    "qwen3_training": (TRL + "qwen3_training.jinja", QWEN),
    "deepseek_r1_distill": (TRL + "deepseek_r1_distill.jinja",
                            {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}),
    "mistral_v1": (AXOLOTL + "mistral_v1.jinja", MISTRAL),
    "mistral_v3": (AXOLOTL + "mistral_v2v3.jinja", MISTRAL),
    "mistral_v3_tekken": (AXOLOTL + "mistral_v3_tekken.jinja", MISTRAL),
    "mistral_v7_tekken": (AXOLOTL + "mistral_v7_tekken.jinja", MISTRAL),
    "smollm2": (None, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>",
                       "pad_token": "<|im_end|>"}),
}

# SmolLM2 has the template of Qwen 2 (not 2.5) with another default message of the system: "You are a helpful assistant." in
# Qwen/Qwen2-*-Instruct (Apache License 2.0). No package on PyPI carries that file, so it was not compared with it byte by byte.
SMOLLM2_DEFAULT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QWEN2_DEFAULT = "You are a helpful assistant."


def said(*texts):
    """Turns of "role: content"."""
    return [dict(zip(("role", "content"), text.split(": ", 1))) for text in texts]


TOOL = {"type": "function", "function": {"name": "add", "description": "Adds \"two\" <numbers> & größer\n",
        "parameters": {"type": "object", "properties": {"a": {"type": "number", "default": 1.5}, "b": {"type": "integer"}},
                       "required": ["a", "b"], "strict": True, "limit": None, "empty": {}, "none": []}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"a": 1.0, "b": -2, "c": "ü\n\"", "d": 1e22}}}
CONVERSATIONS = {
    "user": {"messages": said("user: What is 2 + 2?")},
    "system": {"messages": said("system: You are terse.", "user: What is 2 + 2?")},
    "turns": {"messages": said("system: You are terse.", "user: 2 + 2?", "assistant: 4", "user: 3 + 3?", "assistant: 6",
                               "user: And 4 + 4?")},
    "ended": {"messages": said("user: 2 + 2?", "assistant: 4")},
    "spaces": {"messages": said("system:   \n padded \t\n", "user: \n\n  two\n lines  \u3000\n", "assistant:  \n4 \n", "user: \u00a0")},
    "characters": {"messages": said("user: \"quotes\" 'and' \\n {{ braces }} {% set x = 1 %} <b>&amp; 你好 \U0001f600 e\u0301",
                                    "assistant: {# no comment #}", "user: <|im_end|><s>[INST]\r\n")},
    "empty": {"messages": said("system: ", "user: ")},
    "thinking": {"messages": said("user: 2 + 2?", "assistant: <think>\nTwo and two.\n</think>\n\n4", "user: 3 + 3?",
                                  "assistant: <think>\n\n</think>\n\n\n6")},
    "late system": {"messages": said("user: a", "system: b", "user: c")},
    "two users": {"messages": said("user: a", "user: b")},
    "assistant first": {"messages": said("assistant: a", "user: b")},
    "other role": {"messages": said("user: a", "critic: b")},
    "tools": {"messages": said("system: Use tools.", "user: 1 - 2?"), "tools": [TOOL, TOOL]},
    "tool calls": {"messages": said("user: 1 - 2?") + [{"role": "assistant", "content": "", "tool_calls": [CALL]},
                                                      {"role": "tool", "content": "-1", "tool_call_id": "abcdefghi"},
                                                      {"role": "assistant", "content": "It is -1."}], "tools": [TOOL]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]},
}

VARIABLES = {"text": "  Ab cä,\n😀 ", "list": [3, 1, 2], "map": {"b": [1, {"c": None}], "a": 1.5, "items": "own"}, "yes": True,
             "messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "n": 0}]}
LANGUAGE = [
    # White space.
    "a\n  {% if true %}\n  b\n  {% endif %}\n c", "a \n {%- if true -%} \n b \n {%- endif -%} \n c", "  {%+ if true %}x{% endif +%}\ny",
    "a {# c #} b\n  {# c #}\n  d {#- c -#} e", "{{ 1 }}\n\n{{ 2 }}\n", "{{ 1 }} \n", "a\r\nb\rc\n\n", "{{- 1 -}} x \n{{- 2 -}}\n y",
    "\u00a0{% if true %}a{% endif %}\u2003{%- if true %}b{% endif %}", "x{% if true %}\n\ny{% endif %}", "{#\n#}\n{##}a{#-#} b", "{ {a} }%}}}",
    "  {{ 1 }}\n {% set a = 1 %} {% set b = 2 %}\nz", "{%-  if  yes  -%} 1 {%- else -%} 2 {%- endif %}", "{{ '}}' }}{{ {'a': {'b': 1}}.a.b }}",
    # Texts.
    r"{{ 'a\nb\t\\\'\"\x41\u00e4\U0001f600\q\101' }}", "{{ 'a' 'b' \"c\" }}", "{{ text }}|{{ text|trim }}|{{ text.strip() }}|{{ text.strip(' A') }}",
    "{{ text|length }} {{ text[2] }} {{ text[-2] }} {{ text[1:-1] }} {{ text[::-1] }} {{ text[5:2:-1] }} {{ text[::3] }}{{ text[99:] }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.split(maxsplit=1) }} {{ ''.split(',') }} {{ ' '.split() }}",
    "{{ 'xxaxx'.lstrip('x') }} {{ 'xxaxx'.rstrip('x') }} {{ 'äxä'.strip('ä') }}", "{{ 'aXa'|upper }} {{ 'aXa'.lower() }} {{ 'hELLO wORLD'|capitalize }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('') }}", "{{ 'aaa'.replace('a', 'b', 2) }} {{ 'aaa'|replace('aa', 'b') }}",
    "{{ ', '.join(['a', 'b']) }} {{ [1, none, 'x']|join('-') }} {{ [{'a': 1}, {'a': 2}]|join(',', attribute='a') }} {{ 'abc'|join('.') }}",
    "{{ 'a\nb\n\nc\n'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent('> ', blank=true) }}|{{ ''|indent(first=true) }}", "{{ 'ab' * 3 }}{{ 2 * 'c' }}{{ 'x' * -1 }}",
    "{{ 'b' in 'abc' }} {{ '' in 'a' }} {{ 'z' not in 'abc' }}", "{{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ 'ä' > 'z' }} {{ 'a' <= 'a' }}", "{{ 'a' ~ 1 ~ none ~ 1.0 ~ [1] ~ nothing }}",
    # Numbers.
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 * 3 + 4 - 1 }} {{ -2 - -3 }} {{ +1 }}", "{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1.5e300 * 1e10 }}",
    "{{ true + 1 }} {{ 1 == true }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ 1 < 2 < 3 }} {{ 1 < 3 > 2 == 2 }} {{ 3 > 2 > 2 }}", "{{ (loop is defined) }} {{ 1 is number }} {{ not 1 == 2 }} {{ -1 is odd }} {{ 4 is divisibleby 2 }} {{ 3 is even }}",
    "{{ 1 / 0 }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 'a' }}", "{{ nothing + 'a' }}", "{{ 1 < 'a' }}", "{{ -'a' }}",
    # Lists, tuples and mappings.
    "{{ list }} {{ (1, 'a') }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }} {{ 1, 2 }} {{ {'a': 1, 'a': 2, 2: none} }}", "{{ list[0] }} {{ list[-1] }} {{ list[1:] }} {{ list[::-1] }} {{ list[:-1] }} {{ list[9] }}|{{ list.0 }}",
    "{{ map.a }} {{ map['a'] }} {{ map.b[1].c }} {{ map['items'] }} {{ map.missing }}|{{ map['missing'] }}|{{ map.b[0] }} {{ map.get('a') }} {{ map.get('x') }} {{ map.get('x', 3) }}",
    "{{ map }} {{ map|tojson }}", "{{ map|tojson(indent=2) }}", "{{ {}|tojson(indent=1) }}{{ []|tojson(indent=1) }}", "{{ map|tojson(sort_keys=true, separators=(',', ':')) }}", r"{{ 'ä\u0001\x7f\"\\/\n\t<&😀'|tojson }} {{ 'ä😀\x7f'|tojson(ensure_ascii=true) }}",
    "{{ [1, 2.0, true, none, 'a', (1, 2)]|tojson }}", "{{ nothing|tojson }}", "{{ ['it\\'s', 'say \"x\"', 'both \\' \"', '\\n\\t\\\\', '\\u00a0\\u200b\\x00ä😀'] }}", "{{ [1, 2] + [3] }} {{ (1,) + (2,) }} {{ [1] == [1] }} {{ [1] == (1,) }} {{ {'a': 1} == {'a': 1.0} }}",
    "{{ 2 in list }} {{ 'a' in map }} {{ 'z' not in map }} {{ 1 in nothing }} {{ 'a' in (1, 'a') }}", "{{ 1 in none }}", "{{ 1 in 'a1' }}", "{{ list|first }} {{ list|last }} {{ 'xyz'|first }} {{ []|first }}|{{ []|last is defined }}",
    "{{ list|length }} {{ map|length }} {{ nothing|length }} {{ ''|count }} {{ map.items()|length }}", "{{ none|length }}", "{{ 'ab'|list }} {{ map|list }} {{ range(3)|list }} {{ range(5, 1, -2)|list }} {{ range(2, 4)[1] }} {{ range(0)|list }}",
    "{{ messages|map(attribute='role')|join(',') }} {{ messages|map(attribute='n', default=9)|list }} {{ ['a', 'b']|map('upper')|list }} {{ [' a ']|map('trim')|first }} {{ [{'a': {'b': [5]}}]|map(attribute='a.b.0')|list }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|selectattr('n', 'defined')|map(attribute='content')|join }} {{ messages|selectattr('n')|list }} {{ messages|rejectattr('role', '==', 'user')|map(attribute='role')|list }}",
    "{{ [1, 2, 3, 4]|select('odd')|list }} {{ [1, 2]|reject('equalto', 1)|list }} {{ [0, 1, '']|select|list }} {{ [1, 'a']|select('string')|list }}", "{{ list|map('string')|length }}",
    "{% set g = list|select %}{{ g|list }}{{ g|list }}{% if g %}true{% endif %}", "{% set g = list|select %}{{ g|first }}{{ g|list }}", "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'x': 1}|items %}{{ k }}{{ v }}{% endfor %}{{ map.keys()|list }}{{ map.values()|list }}",
    # Tests and undefined values.
    "{{ x is defined }} {{ x is undefined }} {{ none is none }} {{ x is none }} {{ map is mapping }} {{ list is mapping }} {{ list is iterable }} {{ 'a' is iterable }} {{ none is iterable }} {{ 1 is iterable }} {{ 'a' is sequence }} {{ map is sequence }}",
    "{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ true is boolean }} {{ 1 is boolean }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ 'a' is string }} {{ 'a' is eq 'a' }} {{ 1 is in [1] }} {{ 2 is gt 1 }} {{ 1 is ne(1) }}",
    "{{ x }}|{{ x.y is defined }}", "{{ map.x.y }}", "{{ map.x is defined }} {{ map.x|default('d') }} {{ ''|default('d') }}|{{ ''|default('d', true) }} {{ none|default('d') }} {{ x|d }}|", "{{ none.x }}|{{ 'abc'.x }}|{{ 'abc'['x'] is defined }}", "{{ x() }}", "{{ map.a() }}", "{{ -list|length }}",
    "{{ true is not false }} {{ 1 is not none }} {{ not true is false }} {{ not not 1 }} {{ not x is defined }} {{ 1 if x }}|{{ 1 if x else 2 }} {{ 1 if false else 2 if false else 3 }}", "{{ 0 or 'a' }} {{ 1 and 'b' }} {{ x or none }} {{ [] and 1 }} {{ 1 and 0 or 2 }} {{ true or x.y.z }}",
    "{{ strftime_now is defined }} {{ raise_exception is defined }} {{ undefined_function is defined }} {{ text.strip is defined }}", "{{ 1 + list|length * 2 }} {{ 'a' + 'B'|lower }} {{ ('a' + 'B')|lower }} {{ list|length - 1 }} {{ 1 ~ 2 + 3 }}",
    # Statements.
    "{% for m in list %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.previtem }}/{{ loop.nextitem is defined }} {% endfor %}", "{% for m in list if m > 1 %}{{ m }}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for m in list if m > 9 %}x{% else %}none{% endfor %}", "{% for m in nothing %}x{% else %}e{% endfor %}", "{% for m in none %}x{% endfor %}", "{% for c in 'aä' %}[{{ c }}]{% endfor %}", "{% for a, b in [[1, 2], 'xy'] %}{{ a }}{{ b }} {% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{% set x = 1 %}{% for m in list %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}", "{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "{% set n = namespace(a=1) %}{% for m in list %}{% set n.a = n.a + m %}{% set n.b = m %}{% endfor %}{{ n.a }} {{ n.b }} {{ n.c is defined }}", "{% set map.a = 1 %}",
    "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}", "{% set x %} a {{ 1 }}{% endset %}[{{ x }}]{{ x is string }}", "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}", "{% for m in list %}{% if m == 1 %}{% continue %}{% endif %}{{ m }}{% endfor %} {% for m in list %}{% if m == 1 %}{% break %}{% endif %}{{ m }}{% endfor %}",
    "{% for a in list %}{% for b in list %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }} {% endfor %}{{ loop is defined }}", "{% for loop2 in list %}{{ m is defined }}{% set m = 1 %}{% endfor %}", "{% if x %}1{% elif list %}2{% elif true %}3{% else %}4{% endif %}", "{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}",
    "{% set list = list[1:] %}{{ list }}", "{{ raise_exception('refused ' ~ 1) }}", "{{ strftime_now('%d %b %Y %B %A %H:%M %j%%') }}", "{% if not (1 == 1 and 2 in list) %}a{% else %}b{% endif %}", "{% set f = namespace() %}{% set f.list = [] %}{% for m in list %}{% set f.list = f.list + [m] %}{% endfor %}{{ f.list }}",
    # What is no Jinja.
    "{{ 1 ", "{% if true %}", "{% endif %}", "{{ 1 2 }}", "{{ 'a }}", "{{ (1 }}", "{{ a. }}", "{% for in x %}{% endfor %}", "{% set 1 = 2 %}", "{# ", "{{ 1 ++ }}", "{% else %}", "{{ [1, }}", "{% break %}", "{{ $ }}", "{{ }}", "{{ 1) }}", "{% if %}{% endif %}",
]


class Moment(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def rendered(template, **variables):
    try:
        return chat_template_utils._compile_jinja_template(template).render(**variables)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, SyntaxError):
        return None


def main(wheels, model):
    chat_template_utils.datetime = Moment
    OUT.mkdir(exist_ok=True)
    files = {}
    for wheel in ("trl-1.16.0-py3-none-any.whl", "axolotl-0.19.0-py3-none-any.whl"):
        archive = zipfile.ZipFile(pathlib.Path(wheels) / wheel)
        files.update((name, archive) for name in archive.namelist())
    expected = {"conversations": CONVERSATIONS, "templates": {}}
    for name, (path, tokens) in TEMPLATES.items():
        if path is None:
            template = json.loads((pathlib.Path(model) / "tokenizer_config.json").read_text())["chat_template"].encode()
            if name == "qwen2":
                assert template.count(SMOLLM2_DEFAULT.encode()) == 1
                template = template.replace(SMOLLM2_DEFAULT.encode(), QWEN2_DEFAULT.encode())
        else:
            template = files[path].read(path)
        (OUT / f"{name}.jinja").write_bytes(template)
        texts = {}
        for (title, talk), asks in itertools.product(CONVERSATIONS.items(), (True, False)):
            try:
                [text], _ = chat_template_utils.render_jinja_template(
                    [talk["messages"]], tools=talk.get("tools"), chat_template=template.decode(), add_generation_prompt=asks, **tokens)
            except (jinja2.TemplateError, TypeError):
                text = None
            texts.setdefault(title, []).append(text)
        expected["templates"][name] = {"tokens": tokens, "texts": texts}
    for file, content in (("expected.json", expected),
                          ("language.json", {"variables": VARIABLES, "cases": [[one, rendered(one, **VARIABLES)] for one in LANGUAGE]})):
        (OUT / file).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n")


main(*sys.argv[1:])
