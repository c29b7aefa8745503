class Rewrite:
    """Whether sums of a row of the table are changed, and how often they were."""
    def counts(self) -> tuple[int, int]:
        """How many sums were changed, and how many nodes they have absorbed, since `reset`."""
    def reset(self) -> None:
        """Count from zero again."""
    def set_on(self, value: bool) -> bool:
        """Let sums be changed, or run as they were made."""

rewrites: dict[str, Rewrite]
