# The node's cgroup: one of its own in which it may do as it likes, and nothing of the machine's own tree changes.
#   v1: a folder below the caller's in every controller.
#   v2 with systemd: a scope that systemd delegates (Delegate=yes): it enables the controllers on the way there, and keeps the books.
#   v2 without: a folder at the root, where controllers that were off are switched on, and off again by `down`.
# In v2 a cgroup that hands controllers to its children holds no process itself: the node's own are in the child `init`.
# shellcheck shell=bash
CONTROLLERS=(cpu cpuset memory pids) # what the kubelet asks for
UNIFIED=/sys/fs/cgroup/cgroup.controllers
ENABLED=$STATE/enabled-controllers # those that were off at the root before us

cgroup_version() { if [ -e "$UNIFIED" ]; then echo 2; elif [ -e /sys/fs/cgroup/memory/cgroup.procs ]; then echo 1; else echo 0; fi; }
systemd_runs() { [ -d /run/systemd/system ]; }

# scope_command: the words that a command is started with to have its cgroup from systemd; none where there is no systemd
scope_command() {
  if [ "$(cgroup_version)" = 2 ] && systemd_runs; then
    echo systemd-run --scope --quiet --collect --unit="$NODE_CGROUP" -p Delegate=yes -p TasksMax=infinity
  fi
}

# make_cgroup: make the node's cgroup and move this process there; $NODE_RUN/cgroups then names where the node's processes belong
make_cgroup() {
  if [ "$(cgroup_version)" = 1 ]; then make_v1; else make_v2; fi
}

make_v1() {
  local controller self dir f
  while IFS=: read -r _ controller self; do
    controller=${controller#name=}
    [ -n "$controller" ] && [ -d "/sys/fs/cgroup/$controller" ] || continue
    dir=/sys/fs/cgroup/$controller${self%/}/$NODE_CGROUP
    mkdir -p "$dir"
    if [ "$controller" = cpuset ]; then
      for f in cpus mems; do cat "${dir%/*}/cpuset.$f" > "$dir/cpuset.$f"; done
      echo 1 > "$dir/cgroup.clone_children"
    fi
    # in v1 the node is weighed against single processes beside it, not against what runs them
    if [[ ,$controller, == *,cpu,* ]]; then echo 8192 > "$dir/cpu.shares"; fi
    echo $$ > "$dir/cgroup.procs"
    echo "$dir"
  done < <(cat /proc/self/cgroup) > "$NODE_RUN/cgroups" # read at once: the file changes with every step of the loop
}

make_v2() {
  local dir c
  if systemd_runs; then
    dir=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup) # the scope that we were started in
    [[ $dir == */$NODE_CGROUP.scope ]]
  else
    dir=/sys/fs/cgroup/$NODE_CGROUP
    for c in "${CONTROLLERS[@]}"; do
      grep -qw "$c" /sys/fs/cgroup/cgroup.subtree_control && continue
      echo "$c" >> "$ENABLED"
      echo "+$c" > /sys/fs/cgroup/cgroup.subtree_control
    done
    mkdir -p "$dir"
    echo $$ > "$dir/cgroup.procs"
  fi
  mkdir -p "$dir/init"
  echo "$dir/init" > "$NODE_RUN/cgroups"
}

# enter_cgroup: move this process to where the node's processes belong
enter_cgroup() {
  local dir
  while read -r dir; do echo $$ > "$dir/cgroup.procs"; done < "$NODE_RUN/cgroups"
}

# leave_root_as_it_was: switch off what make_v2 switched on, unless somebody else uses it by now
leave_root_as_it_was() {
  local c
  [ -e "$ENABLED" ] || return 0
  while read -r c; do echo "-$c" > /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null || true; done < "$ENABLED"
  rm -f "$ENABLED"
}

# mount_cgroups: inside the node, whose cgroup namespace starts at its own cgroup: that is what /sys/fs/cgroup shows
mount_cgroups() {
  local controller options
  if [ "$(cgroup_version)" = 2 ]; then
    umount -R /sys/fs/cgroup
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    sed 's/[^ ]*/+&/g' /sys/fs/cgroup/cgroup.controllers > /sys/fs/cgroup/cgroup.subtree_control
    return
  fi
  umount -R /sys/fs/cgroup
  mount -t sysfs sysfs /sys
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  while IFS=: read -r _ controller _; do
    case $controller in
      '') continue ;;
      name=*) options=none,$controller controller=${controller#name=} ;;
      *) options=$controller ;;
    esac
    mkdir -p "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$controller"
  done < /proc/self/cgroup
}
