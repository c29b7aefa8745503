"""Settings and counts of the passes that change sums before they are scheduled: for tests and measurements."""

from dynet_cy.schedule.counting cimport clear, counted


cdef class Changes:
    """Whether a pass changes sums, and how often it did."""

    def __cinit__(self):
        self.on = True

    def counts(self):
        """How many sums were changed, and how many nodes they have taken in, since `reset`."""
        return counted(&self.changed_and_taken)

    def reset(self):
        """Count from zero again."""
        clear(&self.changed_and_taken)

    def set_on(self, bint value):
        """Let sums be changed, or run as they were made.

        Returns:
            The setting before.
        """
        before = self.on
        self.on = value
        return before


in_sums = Changes()
in_gates = Changes()
# For Python: W*x + U*h + b, and sums of products of activations.
sums, gates = in_sums, in_gates
