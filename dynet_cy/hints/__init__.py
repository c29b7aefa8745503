"""Hints for programs and people that come from PyTorch, NumPy, TensorFlow and DyNet: tables, and what reads them."""
