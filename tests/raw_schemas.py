"""Raw tool schemas, as an MCP server lists them."""


def tool(name, *required):
  """A tool that takes strings."""
  properties = {key: {'type': 'string'} for key in required}
  return {
    'name': name,
    'description': name,
    'inputSchema': {'type': 'object', 'properties': properties, 'required': required},
  }
