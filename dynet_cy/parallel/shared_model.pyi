from typing_extensions import Buffer

from dynet_cy.memory.storage import Storage
from dynet_cy.parallel.shared import SharedCommunicator

class SharedModel:
    storage: Storage
    plane_bytes: int
    region: Buffer
    def __init__(self, communicator: SharedCommunicator, storage: Storage, parts: int, with_children: bool) -> None: ...
    def plane(self, part: int) -> Buffer: ...
