from dynet_cy.graph.graph import Requests

# Who collects requests of items that share a graph.
class SharedRequests(Requests): ...
