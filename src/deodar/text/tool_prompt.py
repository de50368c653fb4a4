"""The fixed texts of the V4.1 chat format that introduce tools and a response format.

They are part of the model's format (spec api 1.6 and 1.7): one changed byte is another prompt. The
tests hold their hashes. Read by `text/chat.py` only.
"""

from __future__ import annotations

# The format's own wording and line lengths; not ours to wrap.
BEFORE_SCHEMAS = (
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. "
    'You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:\n\n'
    "<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="$TOOL_NAME">\n'
    '<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE'
    "</｜DSML｜ parameter>\n"
    "...\n"
    "</｜DSML｜ invoke>\n"
    '<｜DSML｜ invoke name="$TOOL_NAME2">\n'
    "...\n"
    "</｜DSML｜ invoke>\n"
    "</｜DSML｜ calls>\n\n"
    'String parameters should be specified as is and set `string="true"`. '
    "For all other types (numbers, booleans, arrays, objects), "
    'pass the value in JSON format and set `string="false"`.\n\n'
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n"
)

AFTER_SCHEMAS = (
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas "
    "to invoke tool calls.\n"
)

RESPONSE_FORMAT = (
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
)
