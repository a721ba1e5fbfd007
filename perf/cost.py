"""What a turn costs besides the client's processor time: the broker's, and bytes on the wire.

Processor time is that of the processes that listen on the broker's port, and of their children.
Bytes are the payload of the client's TCP connections to this port, as the kernel counts them;
retransmitted bytes count once.  A lane may close its connections before the turn ends, so `ss`
also reports connections as they end.  `ss` does not name the process of an ended connection, and
the broker's processor time includes all clients: nothing else may use the broker meanwhile.
"""

import re
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from select import select
from time import clock_gettime, monotonic, sleep
from urllib.parse import urlsplit

COLUMNS = ('broker_cpu', 'sent', 'received')  # seconds, and bytes of the client

SS = ('ss', '--tcp', '--info', '--processes', '--numeric', '--no-header', '--oneline')
PID = re.compile(r'pid=(\d+)')
COUNTERS = ('bytes_sent', 'bytes_retrans', 'bytes_received')
CLOSING = 5.0  # seconds for connections to end

Connections = dict[str, tuple[int, int]]  # bytes sent and received, by the client's address


@contextmanager
def meter(address: str, clients: Iterable[int]) -> Iterator[dict[str, float]]:
    """Measure while the context is open; at its end, the values of :data:`COLUMNS` are known.

    :param address: address of the broker: a URI, or host:port.
    :param clients: PIDs of the lane's processes.
    :raises OSError: no process listens on the broker's port here, or counters cannot be read.
    """
    port = port_of(address)
    pids, listening = set(clients), list(processes(port))
    found: dict[str, float] = {}
    await_closed(port)  # else the end of a connection that others closed before would count
    earlier = counted(listed(port)).keys()
    with socket.create_server(('127.0.0.1', 0)) as last, events(port, last) as ended:
        before, times = connections(port, pids), cpu_times(listening)
        # Connections of other processes, and of a warm-up that has just been closed, may end.
        others = earlier - before.keys()
        yield found
        later = cpu_times(listening)
        after = open_connections(port, pids) | ended_connections(ended, last)
    found['broker_cpu'] = sum(later[pid] - times[pid] for pid in later.keys() & times.keys())
    own = [(count, before.get(at, (0, 0))) for at, count in after.items() if at not in others]
    for i, name in enumerate(('sent', 'received')):
        found[name] = sum(now[i] - then[i] for now, then in own)


def port_of(address: str) -> int:
    """The port of an address: of a URI, or host:port."""
    port = urlsplit(address if '://' in address else f'//{address}').port
    assert port is not None
    return port


def processes(port: int) -> Iterator[int]:
    """PIDs of the processes that listen on a port, and of their children.

    :raises OSError: there is none, or this user may not see it.
    """
    import psutil  # type: ignore[import-untyped,unused-ignore]

    listening = {
        item.pid
        for item in psutil.net_connections('tcp')
        if item.status == psutil.CONN_LISTEN and item.laddr.port == port and item.pid
    }
    if not listening:
        raise OSError(
            f'no process listens on port {port} here, or only root may see it: the costs of a'
            ' broker are measured on its machine, as root'
        )
    for pid in listening:
        yield pid
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))


def cpu_times(pids: Iterable[int]) -> dict[int, float]:
    """Seconds of processor time of those processes that run, including ended threads (Linux)."""
    found = {}
    for pid in pids:
        try:
            found[pid] = clock_gettime(~pid << 3 | 2)  # the clock of another process
        except OSError:  # it has ended
            pass
    return found


# -- connections


def listed(port: int) -> list[str]:
    """The connections to a port, as lines of `ss`."""
    command = (*SS, 'dport', '=', f':{port}')
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f'`ss` failed: {done.stderr.strip()}')
    return done.stdout.splitlines()


def connections(port: int, clients: set[int]) -> Connections:
    """Counters of the connections of some processes to a port."""
    lines = listed(port)
    return counted(line for line in lines if not clients.isdisjoint(map(int, PID.findall(line))))


def open_connections(port: int, clients: set[int]) -> Connections:
    """The same, once connections that a process has closed have ended."""
    await_closed(port)
    return connections(port, clients)


def await_closed(port: int) -> None:
    """Wait until the connections to a port that a process has closed have ended."""
    limit = monotonic() + CLOSING
    while any(not PID.search(line) for line in listed(port)) and monotonic() < limit:
        sleep(0.01)


@contextmanager
def events(port: int, last: socket.socket) -> Iterator[Iterator[str]]:
    """Lines of `ss` for connections to a port, or to that of a socket, as they end."""
    also = last.getsockname()[1]
    ports = ('dport', '=', f':{port}', 'or', 'dport', '=', f':{also}')
    command = ('stdbuf', '-oL', *SS, '--events', *ports)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while not select([process.stdout], [], [], 0.05)[0]:
                end_connection(last)  # until `ss` has seen one, it may miss others
            yield process.stdout
        finally:
            process.terminate()


def ended_connections(events: Iterable[str], last: socket.socket) -> Connections:
    """Counters of the connections that have ended before one that ends here."""
    end, to_last = end_connection(last), ' {}:{} '.format(*last.getsockname())
    lines: list[str] = []
    for line in events:
        if f' {end} ' in line:
            return counted(lines)
        if to_last not in line:
            lines.append(line)
    raise OSError('`ss --events` has ended')


def end_connection(server: socket.socket) -> str:
    """Open and close a connection; return the client's address."""
    with socket.create_connection(server.getsockname()):
        accepted, (host, port) = server.accept()
    accepted.close()
    return f'{host}:{port}'


def counted(lines: Iterable[str]) -> Connections:
    """Read lines of `ss`: STATE RECV-Q SEND-Q CLIENT BROKER, followed by counters."""
    found = {}
    for line in lines:
        words = line.split()
        values = dict(word.split(':', 1) for word in words if word.startswith(COUNTERS))
        sent, again, received = (int(values.get(name, 0)) for name in COUNTERS)
        found[words[3]] = sent - again, received
    return found
