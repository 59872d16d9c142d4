#!/usr/bin/env bash
# usage: setup_test.sh SOURCE SCRATCH
# ./setup beside another apt, as on a machine that has just started, and without a network: stubs of apt-get and of pip say
# what these say.
set -euo pipefail
source=$1 scratch=$2
rm -rf "$scratch"
# With a source of XGrammar none is fetched.
mkdir -p "$scratch/bin" "$scratch/cache/$(sed -n 's/^xgrammar_version=/xgrammar-/p' "$source/setup")-source"
cd "$scratch"
die() { echo "setup_test: $*: $(cat said)" >&2; exit 1; }

cat >bin/apt-get <<'EOF'
#!/bin/bash
cd "${0%/bin/*}"
[[ $LC_ALL == C ]] || { echo "E: Apt spricht Deutsch"; exit 100; }
read -r held <held
if ((held > 0)); then
  echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)"
  exit 100
fi
echo "$1" >>calls
[[ ! -s wrong ]] || { cat wrong; exit 100; }
EOF
cat >bin/sleep <<'EOF'
#!/bin/bash
cd "${0%/bin/*}"
read -r held <held
echo $((held - 1)) >held
EOF
printf '#!/bin/bash\n' >bin/dpkg-query  # knows no package
printf '#!/bin/bash\nexec "$@"\n' >bin/sudo
chmod +x bin/*
# set_up HELD WRONG: apt's lock is held for HELD waits, then apt fails with the text WRONG, if there is one.
set_up() {
  echo "$1" >held
  printf '%s' "$2" >wrong
  : >calls
  PATH=$PWD/bin:$PATH LANG=de_DE.UTF-8 OUTRIDER_CACHE=$PWD/cache "$source/setup" --no-build </dev/null >said 2>&1
}

set_up 3 "" || die "a lock that is given back stopped it"
[[ $(cat calls) == $'update\ninstall' ]] || die "not an update and an install: $(cat calls)"
[[ $(grep -c "waiting for another apt to end: E: Could not get lock .* (unattended-upgr)" said) == 1 ]] || die "it waited silently"
! set_up 1000 "" || die "a lock that is never given back did not stop it"
grep -q "^setup: apt-get install failed: E: Could not get lock" said || die "it does not say why"
! set_up 0 "E: Unable to locate package cmake" || die "a package that does not exist did not stop it"
[[ $(cat calls) == $'update\ninstall' ]] || die "tried again: $(cat calls)"
grep -q "^setup: apt-get install failed: E: Unable to locate package cmake" said || die "it does not say why"

cat >bin/python3 <<'EOF'
#!/bin/bash
mkdir -p "$3/bin"  # -m venv FOLDER
cat >"$3/bin/pip" <<'EOP'
#!/bin/bash
echo "WARNING: Retrying (Retry(total=4)) after connection broken by 'Failed to establish a new connection: no name server'"
echo "ERROR: Could not find a version that satisfies the requirement xgrammar (from versions: none)"
echo "ERROR: No matching distribution found for xgrammar"
exit 1
EOP
chmod +x "$3/bin/pip"
EOF
chmod +x bin/python3
rm -r cache
! set_up 0 "" || die "without XGrammar it went on"
grep -q "^setup: cannot fetch XGrammar: .*no name server" said || die "it does not say why"
