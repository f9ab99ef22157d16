#!/bin/sh
# Stands for ssh where hosts are namespaces: ssh.sh [OPTIONS] ADDRESS COMMAND...
#
# The command line goes to a shell there, whose environment is that of a fresh login: what a launcher does not carry over
# by itself is not there. VT_HOSTS says which process is in which host's namespaces: "ADDRESS=PID ADDRESS=PID".
while :; do
	case $1 in
	-[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
	-*) shift ;;
	*) break ;;
	esac
done
address=$1
shift
for host in $VT_HOSTS; do
	[ "${host%%=*}" = "$address" ] || continue
	exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin SHELL=/bin/sh \
		nsenter -t "${host##*=}" -n -u -- /bin/sh -c "$*"
done
echo "ssh.sh: no host $address" >&2
exit 255
