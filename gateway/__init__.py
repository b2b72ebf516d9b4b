"""The gateway: what black-box agents take for OpenAI, Anthropic or Gemini.

Imports infra and mainspring; imported by workers.
"""
