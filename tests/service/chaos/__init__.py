"""Random faults while services run studies, and what must hold after them."""
