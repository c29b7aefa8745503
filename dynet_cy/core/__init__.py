"""The plain structs that every layer shares."""
