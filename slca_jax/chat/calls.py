"""The calls in an assistant's text, and the text of a call."""

import json

from slca_jax.dialogue import ToolCall

OPEN, CLOSE = '<tool_call>', '</tool_call>'


def render(call: ToolCall) -> str:
  """The block of a call as a policy should write it; parse(render(call)) gives the call back."""
  return f'{OPEN}\n{json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)}\n{CLOSE}'
