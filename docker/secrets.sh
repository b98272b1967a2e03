#!/bin/sh
# Makes the secrets of the containers, once: docker/secrets/*. Nothing is overwritten.
# Compose mounts a file with the owner and mode that it has here, and containers run as other users (10001, those
# of Redis and Grafana): so the files may be read, and the directory may be entered by you alone.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
chmod 0700 secrets
random() { openssl rand -hex 32; }
for name in internal_secret jwt_secret cursor_secret admin_api_key redis_password grafana_password; do
    [ -s "secrets/$name" ] || random > "secrets/$name"
done
password=$(cat secrets/redis_password)
# The commands that the roles really use (redis/commands, held against the code by a test). `default` is off.
[ -s secrets/redis_acl ] || cat > secrets/redis_acl <<ACL
user default off
user qim on >$password $(cat redis/commands)
ACL
[ -s secrets/redis_url ] || printf 'redis://qim:%s@redis:6379/0\n' "$password" > secrets/redis_url
chmod 0444 secrets/*
echo "docker/secrets: ready"
