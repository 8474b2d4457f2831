#!/bin/sh
# Installs what `fasti bench peers` compares Fasti with: servers as Debian packages (as root), clients into
# .peers-venv. Nothing is started: Debian's services are told not to, and the benchmark runs its own.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-python3}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        beanstalkd redis-server postgresql rabbitmq-server
else
    echo "not root: the servers are left to you: apt-get install beanstalkd redis-server postgresql rabbitmq-server" >&2
fi

"$python" -m venv "$root/.peers-venv"
"$root/.peers-venv/bin/pip" install --quiet -r "$root/benchmarks/peers/requirements.txt"
