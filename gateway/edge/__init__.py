"""The edge: a public address for gateways that can only dial out.

`app`, `arriving` and `lines` are the edge's own; `dialling` and `line_connection` are the gateway's
end; `secret` and `wire` are of both.
"""
