# Berth's hand inside a container, in POSIX shell. What a command's start and end need are builtins alone.
#
# $STATE holds `run/<pid>`, one file for each session of ours ("id grant born", the session being the wrapper's pid), or, on a full
# disk, where a file can still be named but not filled, `run/<pid>.<id>.<grant>.<born>`; and `fence/<height>`. Every process of ours has BERTH_EXEC=<id>:<grant>: in its environment unless it took that out.
umask 0
exec 3>&2 2>/dev/null
STATE=$1 NONCE=$2 ID=$3 GRANT=$4 VERB=$5
shift 5
RUN=$STATE/run FENCE=$STATE/fence

# Reads a process: P_STATE P_PARENT P_SESSION P_STARTED P_NAME. Fails when it is over.
look() {
    LINE=
    while IFS= read -r PART || [ -n "$PART" ]; do LINE=$LINE$PART; done <"/proc/$1/stat" || return 1
    P_NAME=${LINE#*\(}
    set -- ${LINE##*) }
    [ $# -ge 20 ] || return 1
    P_STATE=$1 P_PARENT=$2 P_SESSION=$4 P_STARTED=${20}
    case $P_STATE in Z | X) return 1 ;; esac
}

# When this container's first process began: what was registered under another one is history.
look 1
BORN=$P_STARTED

register() {
    [ -d "$RUN" ] && [ -d "$FENCE" ] || mkdir -p -m 1777 "$STATE" "$RUN" "$FENCE"
    printf '%s %s %s\n' "$ID" "$GRANT" "$BORN" >"$RUN/$$" && [ -s "$RUN/$$" ] || printf '' >"$RUN/$$.$ID.$GRANT.$BORN"
}

unregister() { rm -f "$RUN/$1" "$RUN/$1".* || printf '' >"$RUN/$1"; }

height() {
    HEIGHT=0
    for F in "$FENCE"/*; do
        F=${F##*/}
        case $F in *[!0-9]* | '') ;; *) [ "$F" -gt "$HEIGHT" ] && HEIGHT=$F ;; esac
    done
}

# Reads all registrations into " session:id:grant: …".
registrations() {
    KNOWN=' '
    for F in "$RUN"/*; do
        R=${F##*/}
        case $R in
        *.*) R_ID=${R#*.} R_GRANT=${R_ID#*.} R_ID=${R_ID%%.*} R_BORN=${R_GRANT#*.} R_GRANT=${R_GRANT%%.*} R=${R%%.*} ;;
        *) read -r R_ID R_GRANT R_BORN <"$F" || continue ;;
        esac
        [ "$R_BORN" = "$BORN" ] && KNOWN="$KNOWN$R:$R_ID:$R_GRANT: "
    done
}

# Reads a process's mark into M_ID and M_GRANT.
marked() {
    LINE=
    while IFS= read -r PART || [ -n "$PART" ]; do LINE=$LINE$PART; done <"/proc/$1/environ"
    case $LINE in *BERTH_EXEC=*) ;; *) return 1 ;; esac
    LINE=${LINE#*BERTH_EXEC=}
    M_ID=${LINE%%:*} LINE=${LINE#*:}
    M_GRANT=${LINE%%:*}
}

# Whose process this is, into OWNER and O_GRANT: an id, or `stray`. Fails for what is no command's.
owner() {
    look "$1" || return 1
    case $P_SESSION in 0 | 1 | $$) return 1 ;; esac
    # The engine's own, on its way to become one of ours.
    case $P_NAME in runc:*) return 1 ;; esac
    O_STARTED=$P_STARTED HOPS=0 AT=$1
    while :; do
        case $KNOWN in
        *" $P_SESSION:"*)
            LINE=${KNOWN#*" $P_SESSION:"}
            OWNER=${LINE%%:*} LINE=${LINE#*:}
            O_GRANT=${LINE%%:*}
            return 0
            ;;
        esac
        if marked "$AT"; then
            OWNER=$M_ID O_GRANT=$M_GRANT
            return 0
        fi
        AT=$P_PARENT HOPS=$((HOPS + 1))
        case $AT in 0 | 1) break ;; esac
        [ $HOPS -lt 64 ] && look "$AT" || break
    done
    OWNER=stray O_GRANT=-1
}

# The processes to end, into DUE: all below a grant, or one command's, and those nobody answers for.
due() {
    registrations
    DUE=
    for DIR in /proc/[0-9]*; do
        owner "${DIR##*/}" || continue
        case $O_GRANT in control) continue ;; esac
        if [ -n "$ONLY" ]; then
            [ "$OWNER" = "$ONLY" ] || { [ "$OWNER" = stray ] && [ "$O_STARTED" -ge "$SINCE" ]; } || continue
        else
            [ "$O_GRANT" -lt "$BELOW" ] || continue
        fi
        DUE="$DUE ${DIR##*/}"
    done
}

# Stops what is due until nothing new appears, since what is stopped makes no more; kills; and looks again.
end_due() {
    ROUND=0
    while [ $ROUND -lt 400 ]; do
        ROUND=$((ROUND + 1))
        due
        [ -n "$DUE" ] || return 0
        NEW=$DUE STOPPED= TRY=0
        while [ -n "$NEW" ] && [ $TRY -lt 50 ]; do
            for P in $NEW; do kill -STOP "$P"; done
            STOPPED="$STOPPED $NEW" NEW= TRY=$((TRY + 1))
            due
            for P in $DUE; do
                case "$STOPPED " in *" $P "*) ;; *) NEW="$NEW $P" ;; esac
            done
        done
        for P in $STOPPED; do kill -KILL "$P"; done
    done
    return 1
}

# Forgets the registrations of whatever is over.
prune() {
    registrations
    for ENTRY in $KNOWN; do
        S=${ENTRY%%:*} ALIVE=
        for DIR in /proc/[0-9]*; do
            look "${DIR##*/}" && [ "$P_SESSION" = "$S" ] && ALIVE=1 && break
        done
        [ -n "$ALIVE" ] || unregister "$S"
    done
}

# Removes a tree; without its capabilities root too is held up by a directory that may not be written to.
wipe() { rm -rf "$1" || { chmod -R u+rwx "$1" && rm -rf "$1"; }; }

# Renames; a directory that may not be written to cannot change its parent.
rename() {
    mv -f "$1" "$2" && return 0
    [ -d "$1" ] && [ ! -L "$1" ] || return 1
    MODE=$(stat -c %a "$1") && chmod u+w "$1" && mv -f "$1" "$2" && chmod "$MODE" "$2"
}

# The last word of every verb but `run`.
say() {
    unregister $$
    printf '%s %s\n' "$NONCE" "$1"
    exit 0
}

register || {
    printf '%s unregistered\n' "$NONCE"
    exit 0
}

# What is of a grant has registered: either it sees the new fence here, or whoever raises that finds it.
if [ "$GRANT" != control ]; then
    height
    [ "$GRANT" -ge "$HEIGHT" ] || say fenced
fi

case $VERB in
run)
    trap : HUP INT QUIT TERM USR1 USR2
    umask 022
    printf '%s started\n' "$NONCE"
    (exec 2>&3 3>&- "$@")
    CODE=$? LINGERS=0
    registrations
    for DIR in /proc/[0-9]*; do
        look "${DIR##*/}" || continue
        case $P_SESSION in
        $$) [ "${DIR##*/}" = $$ ] || LINGERS=1 ;;
        0 | 1) ;;
        *) case $KNOWN in *" $P_SESSION:"*) ;; *) marked "${DIR##*/}" && [ "$M_ID" = "$ID" ] && LINGERS=1 ;; esac ;;
        esac
    done
    [ $LINGERS = 1 ] || unregister $$
    printf '\0%s\n' "$NONCE" >&3
    printf '\0%s %d %d\n' "$NONCE" $CODE $LINGERS
    exit $CODE
    ;;
fence)
    [ -e "$FENCE/$1" ] || : >"$FENCE/$1"
    height
    BELOW=$1 ONLY=
    [ "$HEIGHT" -ge "$1" ] && end_due && prune && say done
    say undone
    ;;
kill)
    ONLY=$1 BELOW= SINCE=0
    registrations
    case $KNOWN in
    *":$ONLY:"*)
        S=${KNOWN%%":$ONLY:"*}
        look "${S##* }" && SINCE=$P_STARTED
        ;;
    esac
    end_due && prune && say done
    say undone
    ;;
count)
    registrations
    SEEN=' ' COUNT=0
    for DIR in /proc/[0-9]*; do
        owner "${DIR##*/}" || continue
        case $O_GRANT in control) continue ;; esac
        case $SEEN in *" $OWNER "*) ;; *) SEEN="$SEEN$OWNER " COUNT=$((COUNT + 1)) ;; esac
    done
    say "done $COUNT"
    ;;
walk)
    # directory depth mark: everything below the directory, one record each.
    cd "$1" || say undone
    command -v find >&2 && command -v stat >&2 || say missing
    QUOTING_STYLE=literal find . -mindepth 1 -maxdepth "$2" -exec stat -c "$3 %f %s %Y %i %y %z$3%n$3%N" {} + || say undone
    say done
    ;;
remove)
    if [ -d "$1" ] && [ ! -L "$1" ] && [ "$2" != tree ]; then
        for F in "$1"/* "$1"/.[!.]* "$1"/..?*; do
            if [ -e "$F" ] || [ -L "$F" ]; then say full; fi
        done
    fi
    wipe "$1" && [ ! -e "$1" ] && [ ! -L "$1" ] && say done
    say undone
    ;;
move)
    # from to: an empty directory in the way goes first, or the move would end inside it.
    if [ -d "$2" ] && [ ! -L "$2" ]; then rmdir "$2" || say full; fi
    rename "$1" "$2" && say done
    say undone
    ;;
mkdir)
    # base, path below it.
    umask 022
    mkdir -p "$1/$2" && say done
    say undone
    ;;
put | receive)
    # base parents name, and what is staged, or the length and the mode of what comes in: it becomes the file, and is never seen in part.
    TO=$1/${2:+$2/}
    for PROGRAM in mv cat wc chmod; do command -v $PROGRAM >&2 || say missing; done
    if [ -n "$2" ]; then (umask 022 && mkdir -p "$TO") || say nospace; fi
    [ ! -d "$TO$3" ] || [ -L "$TO$3" ] || say isdir
    [ -w "$TO" ] || say denied
    if [ $VERB = put ]; then
        mv -f "$4/it" "$TO.berth-$ID"
    else
        (umask 077 && cat >"$TO.berth-$ID") && [ "$(wc -c <"$TO.berth-$ID")" -eq "$4" ] && chmod "$5" "$TO.berth-$ID"
    fi && mv -f "$TO.berth-$ID" "$TO$3" && {
        [ $VERB = receive ] || wipe "$4"
        say done
    }
    rm -f "$TO.berth-$ID"
    say nospace
    ;;
unpack)
    # staged directory: the tar that is staged is laid over the directory.
    tar -xpof "$1/it" -C "$2" && wipe "$1" && say done
    command -v tar >&2 || say missing
    say nospace
    ;;
replace)
    # staged workspace: what is staged becomes all that the workspace has.
    for F in "$2"/* "$2"/.[!.]* "$2"/..?*; do
        if [ -e "$F" ] || [ -L "$F" ]; then wipe "$F" || say undone; fi
    done
    for F in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ -e "$F" ] || [ -L "$F" ]; then rename "$F" "$2/${F##*/}" || say undone; fi
    done
    wipe "$1"
    say done
    ;;
esac
say undone
