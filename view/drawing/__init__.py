"""Plots of the pages, drawn as SVG by the server."""
