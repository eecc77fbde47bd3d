# Berth's hand inside a plugin's sandbox, in POSIX shell. What else lives on the same machine is none of its business: it ends only
# what carries the mark of its own instance, BERTH_EXEC=<instance>:<id>:<grant>:, in its environment.
umask 077
STATE=$1 INSTANCE=$2 NONCE=$3 ID=$4 GRANT=$5 VERB=$6 WS=$7
shift 7
FENCE=$STATE/fence PARENTS=0
# Before the row says where the workspace is, it is where it was made.
[ -n "$WS" ] || WS=$(cat "$STATE/workspace" 2>/dev/null)

say() {
    printf '%s %s\n' "$NONCE" "$1"
    exit 0
}

height() {
    HEIGHT=0
    for F in "$FENCE"/*; do
        F=${F##*/}
        case $F in *[!0-9]* | '') ;; *) [ "$F" -gt "$HEIGHT" ] && HEIGHT=$F ;; esac
    done
}

# Reads a process's mark into M_ID and M_GRANT. Fails for what is not this instance's command.
marked() {
    [ "$1" != $$ ] || return 1
    LINE=
    while IFS= read -r PART || [ -n "$PART" ]; do LINE=$LINE$PART; done 2>/dev/null <"/proc/$1/environ" || return 1
    case $LINE in *"BERTH_EXEC=$INSTANCE:"*) ;; *) return 1 ;; esac
    LINE=${LINE#*"BERTH_EXEC=$INSTANCE:"}
    M_ID=${LINE%%:*} LINE=${LINE#*:}
    M_GRANT=${LINE%%:*}
    case $M_GRANT in '' | *[!0-9]*) return 1 ;; esac
}

# The environments in which a mark may stand, into SUSPECTS. A shell reads byte by byte, which takes long where many processes are; not
# every grep reads on behind a zero byte, but one that finds this very shell does.
suspects() {
    SUSPECTS=$(grep -lsF "BERTH_EXEC=$INSTANCE:" /proc/[0-9]*/environ 2>/dev/null)
    for FILE in $SUSPECTS; do
        [ "$FILE" != "/proc/$$/environ" ] || return 0
    done
    SUSPECTS='/proc/[0-9]*/environ'
}

# The processes to end, into DUE: those of one command, or all below a grant.
due() {
    DUE=
    suspects
    for FILE in $SUSPECTS; do
        FILE=${FILE%/environ}
        PROCESS=${FILE#/proc/}
        marked "$PROCESS" || continue
        if [ -n "$ONLY" ]; then
            [ "$M_ID" = "$ONLY" ] || continue
        else
            [ "$M_GRANT" -lt "$BELOW" ] || continue
        fi
        DUE="$DUE $PROCESS"
    done
}

# Stops what is due until nothing new appears, since what is stopped makes no more; kills; and looks again.
end_due() {
    [ -r /proc/self/environ ] || say blind
    ROUND=0
    while [ $ROUND -lt 200 ]; do
        ROUND=$((ROUND + 1))
        due
        # While they are read one after the other, one that was read as gone may have left another behind.
        [ -n "$DUE" ] || due
        [ -n "$DUE" ] || return 0
        NEW=$DUE STOPPED= TRY=0
        while [ -n "$NEW" ] && [ $TRY -lt 50 ]; do
            for P in $NEW; do kill -STOP "$P"; done 2>/dev/null
            STOPPED="$STOPPED $NEW" NEW= TRY=$((TRY + 1))
            due
            for P in $DUE; do
                case "$STOPPED " in *" $P "*) ;; *) NEW="$NEW $P" ;; esac
            done
        done
        for P in $STOPPED; do kill -KILL "$P"; done 2>/dev/null
    done
    return 1
}

inside() {
    case "$(pwd -P)/" in "$ROOT"/*) ;; *) say escapes ;; esac
}

# Enters the directory that holds a path, from where it stands, link by link and never out of the workspace; NAME is what is in it.
walk() {
    case $1 in */*) STEPS=${1%/*} NAME=${1##*/} ;; *) STEPS=. NAME=$1 ;; esac
    [ -n "$NAME" ] || NAME=.
    set -f
    IFS=/
    for STEP in $STEPS; do
        [ -n "$STEP" ] || continue
        if [ $PARENTS = 1 ] && [ ! -e "./$STEP" ] && [ ! -L "./$STEP" ]; then (umask 022 && mkdir "./$STEP") || say undone; fi
        [ -e "./$STEP" ] || say missing
        [ -d "./$STEP" ] || say notdir
        cd -P "./$STEP" 2>/dev/null || say undone
        inside
    done
    unset IFS
    set +f
}

place() {
    ROOT=$(cd -P "$WS" 2>/dev/null && pwd -P) && cd "$ROOT" || say lost
    walk "$1"
}

# Follows a last link.
follow() {
    HOPS=0
    while [ -L "./$NAME" ]; do
        HOPS=$((HOPS + 1))
        [ $HOPS -le 40 ] || say escapes
        TARGET=$(readlink "./$NAME")
        case $TARGET in
        "$ROOT"/*) cd "$ROOT" && TARGET=${TARGET#"$ROOT"/} ;;
        /*) say escapes ;;
        esac
        walk "$TARGET"
    done
    case $NAME in ..) say escapes ;; esac
}

# Whether the workspace has what was made for this instance.
ours() {
    cd "$WS" 2>/dev/null || return 1
    [ "$(cat ./.berth-instance 2>/dev/null)" = "$INSTANCE" ] && return 0
    [ "$(cat "$STATE/instance" 2>/dev/null)" = "$INSTANCE" ] || return 1
    for F in ./* ./.[!.]* ./..?*; do
        if [ -e "$F" ] || [ -L "$F" ]; then return 0; fi
    done
    return 1
}

mark() {
    mkdir -p "$STATE" && printf %s "$INSTANCE" >"$STATE/instance" && printf %s "$WS" >"$STATE/workspace"
    (umask 022 && mkdir -p "$WS") && rm -rf "$WS/.berth-instance" && printf %s "$INSTANCE" >"$WS/.berth-instance"
}

wipe() { rm -rf "$1" 2>/dev/null || { chmod -R u+rwx "$1" && rm -rf "$1"; }; }

# Records of everything below the directory it stands in, to a depth; then the links among it with their targets.
records() {
    find . -mindepth 1 -maxdepth "$1" -exec stat -c "$NONCE %f %s %Y %i %y %z $NONCE %n" {} +
    printf '%s%s\n' "$NONCE" "$NONCE"
    find . -mindepth 1 -maxdepth "$1" -type l -exec sh -c 'for F; do printf "%s %s %s " "$0" "$F" "$0"; readlink "$F"; done' "$NONCE" {} +
}

# What is of a grant carries its mark since it began: either it sees the new fence here, or whoever raises that finds it.
if [ "$GRANT" != control ]; then
    mkdir -p "$FENCE" || say unregistered
    height
    [ "$GRANT" -ge "$HEIGHT" ] || say fenced
    # A kill that came while the worker still had this in its queue: it leaves its word first and looks then, as this is seen first
    # and looks then.
    [ ! -e "$STATE/over/$ID" ] || say fenced
fi

case $VERB in
run)
    # cwd, how standard input is written, command…
    cd "$1" 2>/dev/null || say nocwd
    INPUT=$2
    shift 2
    trap : HUP INT QUIT TERM USR1 USR2
    umask 022
    if [ "$INPUT" = base64 ]; then base64 -d | (exec "$@"); else (exec "$@"); fi
    CODE=$? LINGERS=0
    suspects
    for FILE in $SUSPECTS; do
        FILE=${FILE%/environ}
        marked "${FILE#/proc/}" && [ "$M_ID" = "$ID" ] && LINGERS=1 && break
    done
    printf '%s %d %d\n' "$NONCE" $CODE $LINGERS >&2
    exit $CODE
    ;;
fence)
    mkdir -p "$FENCE" || say undone
    [ -e "$FENCE/$1" ] || : >"$FENCE/$1"
    height
    BELOW=$1 ONLY=
    [ "$HEIGHT" -ge "$1" ] && end_due && say done
    ;;
kill)
    mkdir -p "$STATE/over" && : >"$STATE/over/$1" || say undone
    ONLY=$1 BELOW=
    end_due && say done
    ;;
count)
    [ -r /proc/self/environ ] || say blind
    SEEN=' ' COUNT=0
    suspects
    for FILE in $SUSPECTS; do
        FILE=${FILE%/environ}
        marked "${FILE#/proc/}" || continue
        case $SEEN in *" $M_ID "*) ;; *) SEEN="$SEEN$M_ID " COUNT=$((COUNT + 1)) ;; esac
    done
    say "done $COUNT"
    ;;
stand)
    cd "$1" 2>/dev/null && say done
    say missing
    ;;
mark) mark && say done ;;
ours)
    ours && say done
    say strange
    ;;
list)
    # path, depth: what is in a directory.
    place "$1"
    follow
    [ -e "./$NAME" ] || say missing
    [ -d "./$NAME" ] || say notdir
    cd -P "./$NAME" && inside
    records "$2" | base64
    say done
    ;;
stat)
    place "$1"
    [ -e "./$NAME" ] || [ -L "./$NAME" ] || say missing
    {
        stat -c "$NONCE %f %s %Y %i %y %z $NONCE ./it" "./$NAME"
        printf '%s%s\n' "$NONCE" "$NONCE"
        [ ! -L "./$NAME" ] || { printf '%s ./it %s ' "$NONCE" "$NONCE" && readlink "./$NAME"; }
    } | base64
    say done
    ;;
read)
    # path, offset from 1, bytes.
    place "$1"
    follow
    [ -e "./$NAME" ] || say missing
    [ ! -d "./$NAME" ] || say isdir
    [ -f "./$NAME" ] || say undone
    stat -c '%f %s %Y %i %z' "./$NAME"
    tail -c "+$2" "./$NAME" | head -c "$3" | base64
    say done
    ;;
take)
    # a name of ours, offset from 1, bytes: like read, of what lies outside the workspace.
    tail -c "+$2" "$STATE/$1" | head -c "$3" | base64
    say done
    ;;
give)
    # a name of ours, whether it begins: standard input is added to it.
    mkdir -p "$STATE" || say undone
    [ "$2" != first ] || : >"$STATE/$1"
    base64 -d >>"$STATE/$1" && say done
    say full
    ;;
drop)
    wipe "$STATE/$1"
    say done
    ;;
put)
    # path, a name of ours, mode or -, whether parents are made: what lies there becomes a file.
    PARENTS=$4
    place "$1"
    follow
    [ ! -d "./$NAME" ] || say isdir
    NEW=done MODE=$3
    if [ -e "./$NAME" ]; then
        NEW=kept
        [ "$MODE" != - ] || MODE=$(stat -c %a "./$NAME")
    fi
    [ "$MODE" != - ] || MODE=644
    cat "$STATE/$2" >"./.berth-$ID" && chmod "$MODE" "./.berth-$ID" && mv -f "./.berth-$ID" "./$NAME" && wipe "$STATE/$2" && say $NEW
    rm -f "./.berth-$ID" "$STATE/$2"
    say full
    ;;
remove)
    place "$1"
    case $NAME in . | ..) say escapes ;; esac
    [ -e "./$NAME" ] || [ -L "./$NAME" ] || say missing
    if [ -d "./$NAME" ] && [ ! -L "./$NAME" ] && [ "$2" != tree ]; then
        rmdir "./$NAME" 2>/dev/null && say done
        say full
    fi
    wipe "./$NAME" && say done
    ;;
mkdir)
    PARENTS=1
    place "$1"
    [ ! -d "./$NAME" ] || say done
    [ ! -e "./$NAME" ] && [ ! -L "./$NAME" ] || say exists
    umask 022
    mkdir "./$NAME" && say done
    ;;
move)
    place "$1"
    case $NAME in . | ..) say escapes ;; esac
    [ -e "./$NAME" ] || [ -L "./$NAME" ] || say missing
    FROM=$(pwd -P)/$NAME
    place "$2"
    case $NAME in . | ..) say escapes ;; esac
    if [ -e "./$NAME" ] || [ -L "./$NAME" ]; then
        [ "$3" = 1 ] || say exists
        if [ -d "./$NAME" ] && [ ! -L "./$NAME" ]; then
            [ -d "$FROM" ] || say isdir
            rmdir "./$NAME" 2>/dev/null || say full
        fi
    fi
    mv -f "$FROM" "./$NAME" && say done
    ;;
pack)
    # a name of ours, a directory: a tar of it under its own name. A tar says with 1 that something changed meanwhile, which a stat
    # walk finds as well; everything else is a tar that is not whole.
    place "$2"
    follow
    [ -e "./$NAME" ] || say missing
    [ -d "./$NAME" ] || say notdir
    cd -P "./$NAME" && inside && mkdir -p "$STATE" || say undone
    DIR=$(pwd -P)
    cd "$DIR/.." && tar -cf "$STATE/$1" -- "${DIR##*/}" 2>/dev/null
    CODE=$?
    [ $CODE = 0 ] || { [ $CODE = 1 ] && tar --version 2>/dev/null | grep -q GNU; } || say full
    say "done $(stat -c %s "$STATE/$1")"
    ;;
unpack)
    # a name of ours, replace or merge, a directory: a tar that was judged becomes the directory's content, or is laid over it.
    PARENTS=1
    place "$3"
    follow
    [ -e "./$NAME" ] || (umask 022 && mkdir "./$NAME") || say undone
    [ -d "./$NAME" ] || say notdir
    cd -P "./$NAME" && inside || say undone
    DIR=$(pwd -P)
    TO=$DIR
    if [ "$2" = replace ]; then
        TO=$STATE/staged-$ID
        mkdir -p "$TO" || say undone
    fi
    if ! tar -xpof "$STATE/$1" -C "$TO" 2>/dev/null; then
        [ "$2" = merge ] || wipe "$TO"
        say full
    fi
    wipe "$STATE/$1"
    if [ "$2" = replace ]; then
        for F in "$DIR"/* "$DIR"/.[!.]* "$DIR"/..?*; do
            if [ -e "$F" ] || [ -L "$F" ]; then wipe "$F" || say undone; fi
        done
        for F in "$TO"/* "$TO"/.[!.]* "$TO"/..?*; do
            if [ -e "$F" ] || [ -L "$F" ]; then mv -f "$F" "$DIR/${F##*/}" || say undone; fi
        done
        wipe "$TO"
    fi
    mark && say done
    ;;
esac
say undone
