"""Puts what the command says in the words of Python, where options are arguments."""

from __future__ import annotations

import re

OF_A_SHELL = re.compile(r"^(Usage: |For more information, try |  tip: to pass '--)")
"""How the paragraphs begin that help at a command line alone."""

COMMAND = re.compile(r"(`graphc [^`]*`)")
"""A command that is to be given to a shell, and stays what it is."""

OPTION = re.compile(
    r"(?P<quote>'?)(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)"
    r"(?: <[^>]*>(?:\.\.\.)?|[ =](?P<value>\d[\w.]*|[A-Z]+\b|[a-z]\w*[=:]\w+|'\*'|auto\b|full\b|skip\b|ignore\b))?(?P=quote)"
)
"""An option of the command line, with its value where that can be told from the words behind it."""


def in_python(text: str) -> str:
    """The same, with arguments of Python in the place of options: ``--clip-norm 1`` is ``clip_norm=1``."""
    paragraphs = [paragraph for paragraph in text.strip().split("\n\n") if not OF_A_SHELL.match(paragraph)]
    parts = COMMAND.split("\n\n".join(paragraphs))
    return "".join(part if COMMAND.fullmatch(part) else OPTION.sub(_argument, part) for part in parts)


def _argument(found: re.Match[str]) -> str:
    name, value = found["name"].replace("-", "_"), found["value"]
    quote = "`" if found["quote"] else ""
    return f"{quote}{name}{'' if value is None else f'={_literal(value)}'}{quote}"


def _literal(value: str) -> str:
    """A value as it is written in Python: placeholders and numbers as they are, pairs as mappings."""
    if re.fullmatch(r"[A-Z]+|\d+(\.\d+)?", value):
        return value
    key, sign, entry = value.partition("=")
    if sign:
        return f'{{"{key}": {_literal(entry)}}}'
    bare = value.strip("'")
    return f'"{bare}"'
