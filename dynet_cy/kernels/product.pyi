# Written by tools/derive.py

def cuts(way: int, m: int, n: int, k: int, threads: int) -> tuple[bool, list[int]]:
    """How a product is cut for a number of threads: whether in rows, where parts begin, and then its size."""
