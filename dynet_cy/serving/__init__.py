"""Calls that compute their values together: `batched_map`, and servers."""

from dynet_cy.serving.fibers import batched_map
from dynet_cy.serving.server import Server, ServerCall, ServerClosed, ServerFull, ServerStatistics

__all__ = ["Server", "ServerCall", "ServerClosed", "ServerFull", "ServerStatistics", "batched_map"]
