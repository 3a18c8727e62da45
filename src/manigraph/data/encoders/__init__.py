"""Pretrained networks, one family per file; `manigraph.data.features` is how they are used."""
