"""Hugging Face Transformers with the sampled attention that an allot schedule asks for.

    import allot_attention
    allot_attention.register()
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="allot")

The directory's config.json is what `allot export --format hf-config` wrote. README.md says what is followed and what is refused.
"""

from allot_attention.attention import register
from allot_attention.model import check, counting, recording, report, requests, save_report
from allot_attention.schedule import Method, Schedule, ScheduleError

__all__ = ["Method", "Schedule", "ScheduleError", "check", "counting", "recording", "register", "report", "requests", "save_report"]
