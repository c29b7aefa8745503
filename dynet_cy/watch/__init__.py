"""What watches passes: timelines, usage of memory, counts and times of calls, checks of numbers."""
