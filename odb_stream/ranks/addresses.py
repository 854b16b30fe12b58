"""The addresses at which other machines may reach this one, most promising first."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

ASK_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: the address of an interface


def own_addresses() -> list[str]:
    """Addresses of all interfaces, loopback ones last; those of the host's name where no interface tells."""
    found = dict.fromkeys([*_version_4(), *_version_6()]) or dict.fromkeys(_of_the_name())
    return sorted(found, key=lambda address: ipaddress.ip_address(address).is_loopback)


def _version_4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, ASK_ADDRESS, struct.pack("256s", interface.encode()[:15]))
            except OSError:  # the interface has none
                continue
            yield socket.inet_ntoa(answer[20:24])


def _version_6() -> Iterator[str]:
    listing = Path("/proc/net/if_inet6")
    if listing.exists():
        for line in listing.read_text().splitlines():
            address = ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
            if not address.is_link_local:  # needs a scope, which differs from host to host
                yield str(address)


def _of_the_name() -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except socket.gaierror:
        return []
