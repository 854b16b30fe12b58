/* Ranks in step, as concurrent processes: what stands between each rank's data and its training loop.
 *
 * Each rank is two processes, as in the product. The aligner runs the program of odb_stream/batching/program.py
 * (`Program.run`), driven by odb_stream/nodes/align.py over a transport, and puts steps into a bounded queue
 * (odb_stream/nodes/channel.py). The trainer is the user's loop over odb_stream/loader/loader.py: it takes steps, enters one
 * all-reduce a step, and may stop. Data are left open: every number of groups that a rank may plan, every failure and
 * every stop is a choice of the checker. README.md says what is modelled, what is not, and how to run this by hand.
 */

/* ---- Numbers of a configuration, set with -D --------------------------------------------------------------------- */
#ifndef R
#define R 2             /* ranks: 2 or 3 */
#endif
#ifndef K
#define K 3             /* groups that a rank plans in a round, at most; also the most steps of a round */
#endif
#ifndef ROUNDS
#define ROUNDS 2        /* rounds in which ranks have data; in the last of them all data end */
#endif
#ifndef Q
#define Q 1             /* room in the queue, in steps */
#endif
#ifndef A
#define A 1             /* gradient accumulation: steps taken from the queue before the first is yielded */
#endif
#ifndef BURST
#define BURST 0         /* steps of a burst (images); 0: the whole round, without a gather of its own */
#endif
#ifndef DECODES_AHEAD
#define DECODES_AHEAD 1 /* 0: a burst is decoded only when the queue has room for it */
#endif
#ifndef EPOCHS
#define EPOCHS 1
#endif
#ifndef REBALANCE
#define REBALANCE 1
#endif
#ifndef ALLREDUCE
#define ALLREDUCE 1     /* 0: loops without collectives of their own, which run apart */
#endif
#ifndef FAIL
#define FAIL 0          /* 1: stages may raise, in any plan and in any decoding of a burst */
#endif
#ifndef STOP
#define STOP 0          /* 0: loops run to the end; 1: all break at one step of epoch 0; 2: any breaks anywhere */
#endif
#ifndef DEATH
#define DEATH 0         /* 1: one rank may die wherever it is about to talk to its peers */
#endif
#ifndef TROUBLE
#define TROUBLE 0       /* loops that break alone, failures and deaths in one run, at most; 0: without limit */
#endif

/* ---- Rules: all 1. A mutant sets one to 0, and the checker must then find an error ------------------------------- */
#ifndef DELIVERS_BEFORE_NEXT_GATHER
#define DELIVERS_BEFORE_NEXT_GATHER 1   /* 0: rank 1 delivers a round after its next gather */
#endif
#ifndef CLOSE_RETURNS_AT_ONCE
#define CLOSE_RETURNS_AT_ONCE 1         /* 0: close() waits until its aligner has gathered `closing` */
#endif
#ifndef CLOSE_FREES_PUT
#define CLOSE_FREES_PUT 1               /* 0: an aligner waits for room in a queue that was closed */
#endif
#ifndef CLOSING_IS_TOLD
#define CLOSING_IS_TOLD 1               /* 0: the aligner of a loop that broke just stops */
#endif
#ifndef LEAVING_IS_TOLD
#define LEAVING_IS_TOLD 1               /* 0: peers never hear of a rank that left for good */
#endif
#ifndef LEAVING_IS_ONE_DECISION
#define LEAVING_IS_ONE_DECISION 1       /* 0: a rank gives its gather up by itself when it sees that a peer has left */
#endif
#ifndef EXCHANGES_END_WITH_A_GATHER
#define EXCHANGES_END_WITH_A_GATHER 1   /* 0: each rank goes on as soon as it has the groups that moved to it */
#endif
#ifndef FINISHED_RANKS_STAY
#define FINISHED_RANKS_STAY 1           /* 0: a rank with nothing left to plan leaves before gather B */
#endif
#ifndef END_IS_TESTED_FIRST
#define END_IS_TESTED_FIRST 1           /* 0: failed and closing are tested before the end */
#endif
#ifndef BURSTS_CARRY_STATUS
#define BURSTS_CARRY_STATUS 1           /* 0: a burst's gather has no status word */
#endif
#ifndef EMPTY_STEPS_ARE_SKIPPED_BY_ALL
#define EMPTY_STEPS_ARE_SKIPPED_BY_ALL 1 /* 0: a rank skips a step that is empty on this rank */
#endif
#ifndef CONSUMED_WHEN_TAKEN
#define CONSUMED_WHEN_TAKEN 1           /* 0: a step makes room when it is yielded */
#endif
#ifndef ERROR_COMES_AFTER_STEPS
#define ERROR_COMES_AFTER_STEPS 1       /* 0: an error overtakes the steps in the queue */
#endif
#ifndef CUT_WINDOW_IS_YIELDED
#define CUT_WINDOW_IS_YIELDED 1         /* 0: an error inside an accumulation window takes its steps with it */
#endif

#define BIT(x) (1 << (x))
#define EVERYBODY (BIT(R) - 1)
#define TROUBLE_STRIKES (TROUBLE == 0 || trouble < TROUBLE) -> trouble = trouble + (TROUBLE > 0)

/* ---- The aligners' group: odb_stream/ranks/transport.py --------------------------------------------------------
 * A gather happens when all ranks have come to it: the last to come publishes the answer and `turn` flips. Whether it
 * happens or a rank that leaves withdraws is one decision for all: once `gone` is set, no further gather happens.
 */
mtype = { heads, messages, counts, sizes, exchanged, burst }
mtype kind;             /* of the gather that some ranks have come to */
byte stamp;             /* its epoch and round */
byte arrived;
bit turn;
byte gone;              /* 1 + the first rank that left its loader for good, or died */
byte away;              /* all of them, as bits */
byte dead;              /* 1 + the rank that died */
byte in_count[R], in_exhausted, in_failed, in_closing, in_flags;        /* what was said so far; ranks as bits */
byte out_count[R], out_exhausted, out_failed, out_closing, out_flags;   /* the answer */
byte unread;            /* ranks that have yet to read it; then it is cleared, to keep states few */
byte inbox[R];          /* of an exchange: the ranks whose groups lie here */

/* ---- A rank's queue and flags: odb_stream/nodes/channel.py, odb_stream/loader/loader.py ------------------------------- */
byte started[R];        /* epochs begun by the loop */
byte open[R];           /* 1 + the epoch whose queue is open; 0: none */
byte queue[R];          /* finished steps in it */
byte held[R];           /* steps taken from it and not yet yielded */
bool ended[R];          /* no step will follow */
bool raises[R];         /* ... and then an error is raised */
bool left[R];           /* close() for good */
byte ran[R];            /* runs that the aligner has ended */

/* ---- The trainers' group: the gradient all-reduce ---------------------------------------------------------------- */
byte looping[R];        /* 1 + the epoch whose loop this rank is in: a peer outside ends the all-reduce in error */
byte reducing;          /* ranks that have come to it */
bit reduced;
byte reducing_what;     /* the step and its place in the accumulation window */
bool all_stop;          /* what the last one told all ranks: break here (STOP == 1) */

/* ---- What is asserted -------------------------------------------------------------------------------------------- */
byte fate[EPOCHS];      /* how an epoch ends for every rank that does not stop itself: 1 normally, else 2 + the cause */
byte fate_steps[EPOCHS];/* ... and after how many steps */
byte trouble;

hidden byte x, y, total, taken[R];      /* scratch, used inside d_step only */

#define NORMALLY 1
#define FAILED(rank) (1 + rank)
#define CLOSED(rank) (1 + R + rank)
#define LOST(rank) (1 + 2 * R + rank)
#define IN_ERROR(cause) (2 + (cause) * LEAVING_IS_ONE_DECISION)
    /* The mutant of that rule is to be caught by how and when an epoch ends, not by the words of its error. */

/* ==== The aligner ================================================================================================= */

#define CLOSING (open[me] != epoch + 1)
#define WAITING (queue[me] + (CONSUMED_WHEN_TAKEN -> 0 : held[me]))
#define ROOM(n) (CLOSING -> CLOSE_FREES_PUT : WAITING == 0 || WAITING + n <= Q)

#define LEFT(p) (left[p] && p != me)
#define PEER_LEFT (LEAVING_IS_ONE_DECISION -> gone : away || LEFT(0) || LEFT(1) || LEFT(R - 1))

/* Come to a gather, unless it will not happen. What this rank says must already stand in the in_ variables.
 * A5: all ranks come to the same one. */
inline post(what) {
    d_step {
        if
        :: arrived == 0 -> kind = what; stamp = epoch * ROUNDS + round
        :: else -> assert(kind == what && stamp == epoch * ROUNDS + round)
        fi;
        seen = turn;
        arrived++;
        if
        :: arrived == R ->
            for (x : 0 .. R - 1) { out_count[x] = in_count[x]; in_count[x] = 0 }
            out_exhausted = in_exhausted; out_failed = in_failed; out_closing = in_closing; out_flags = in_flags;
            in_exhausted = 0; in_failed = 0; in_closing = 0; in_flags = 0;
            arrived = 0; kind = 0; stamp = 0; unread = R; turn = 1 - turn
        :: else
        fi;
        x = 0
    }
}

/* Wait for the answer. A rank that left for good may withdraw, as long as not all have come. */
inline answer() {
    if
    :: turn != seen
    :: turn == seen && (PEER_LEFT || left[me]) -> seen = 0; goto peer_lost
    fi;
    seen = 0
}

inline have_read() {
    unread--;
    if
    :: unread == 0 ->
        for (x : 0 .. R - 1) { out_count[x] = 0 }
        out_exhausted = 0; out_failed = 0; out_closing = 0; out_flags = 0
    :: else
    fi;
    x = 0
}

/* Whom the PeerError names: the lowest rank that failed, else the lowest that closes (`Program._stop`). */
inline name_cause() {
    x = 0;
    do
    :: (out_failed -> out_failed : out_closing) & BIT(x) -> break
    :: else -> x++
    od;
    cause = (out_failed -> FAILED(x) : CLOSED(x));
    closes = ((out_closing & BIT(me)) != 0)
}

/* Steps of the round, groups left over, and whom this rank sends groups to and gets some from:
 * odb_stream/batching/deal.py (`steps_of_round`, `deal_round`, `Deal.moves`). */
inline deal() {
    last = (out_exhausted == EVERYBODY);
    moving = (REBALANCE && out_exhausted);
    if
    :: moving -> steps = (last -> (total + R - 1) / R : total / R)
    :: else ->
        steps = (last -> 0 : K);
        for (x : 0 .. R - 1) {
            if
            :: last && out_count[x] > steps -> steps = out_count[x]
            :: !last && !(out_exhausted & BIT(x)) && out_count[x] < steps -> steps = out_count[x]
            :: else
            fi
        }
    fi;
    uneven = (moving && last && total % R);
    /* The oldest groups, by place and then rank; without moves, one's own. */
    for (x : 0 .. R - 1) { taken[x] = (moving -> 0 : (out_count[x] < steps -> out_count[x] : steps)) }
    total = (total < steps * R -> total : steps * R);
    x = 0; y = 0;
    do
    :: !moving || total == 0 -> break
    :: moving && total && y == R -> x++; y = 0
    :: moving && total && y < R ->
        if
        :: out_count[y] > x -> taken[y]++; total--
        :: else
        fi;
        y++
    od;
    surplus = planned - taken[me];
    /* Where one has too many and another too few, groups move. */
    for (x : 0 .. R - 1) {
        for (y : 0 .. R - 1) {
            do
            :: moving && taken[x] > steps && taken[y] < steps ->
                taken[x]--; taken[y]++; moves = true;
                to = to | (x == me -> BIT(y) : 0);
                from = from | (y == me -> BIT(x) : 0)
            :: else -> break
            od
        }
    }
}

/* The queue's end (`Channel.end`). A1 and A8: all loops that still run end alike, after equally many steps. */
inline finish(how) {
    if
    :: CLOSING                              /* nobody listens */
    :: else ->
        ended[me] = true; raises[me] = (how != NORMALLY);
        if
        :: fate[epoch] == 0 -> fate[epoch] = (dead -> 0 : how); fate_steps[epoch] = (dead -> 0 : agreed)
        :: else -> assert(dead || (fate[epoch] == how && fate_steps[epoch] == agreed))
        fi
    fi
}

/* When all have begun the next epoch nobody asks how the one before ended; this only keeps states few. */
inline forget_old_fate() {
    if
    :: epoch && fate[epoch - 1] ->
        d_step {
            x = 0;
            do
            :: x < R && started[x] > epoch && ran[x] >= epoch -> x++
            :: else -> break
            od;
            if
            :: x == R -> fate[epoch - 1] = 0; fate_steps[epoch - 1] = 0
            :: else
            fi;
            x = 0
        }
    :: else
    fi
}

#define NO_MORE_WAITING (left[me] || (away & (to | from)))
#define RECEIVED(x) !((to & BIT(x)) && (inbox[x] & BIT(me)))
#define MAY_DIE DEATH && !dead && TROUBLE_STRIKES; goto die

proctype Aligner(byte me) {
    byte epoch, round;
    byte planned, surplus, steps, part;
    byte agreed;                        /* steps of this epoch delivered so far, also those that nobody wanted */
    byte owed;                          /* only for the rule DELIVERS_BEFORE_NEXT_GATHER */
    byte to, from;                      /* sets of ranks */
    byte cause;
    bool exhausted, failed, emptied, closes, ends, last, moving, uneven, moves;
    bit seen;

idle:
    atomic {        /* one run an epoch, one after the other */
        if
        :: started[me] > epoch
        :: started[me] == epoch && left[me] -> goto leave
        fi;
        forget_old_fate();

        /* `Program._plan`: any number of groups that the rules allow, those left over first; `Program._head`. */
plan:   if
        :: MAY_DIE
        :: left[me] -> goto leave
        :: !CLOSING_IS_TOLD && CLOSING -> goto run_over
        :: FAIL && !exhausted && TROUBLE_STRIKES; failed = true
        :: true ->
            planned = surplus;
            do
            :: !exhausted && planned < K -> planned++
            :: break
            od;
            if
            :: !exhausted && planned && round < ROUNDS - 1
            :: exhausted = true             /* and planned == 0 where all the rest was dropped */
            fi
        fi;
        surplus = 0;
        if
        :: PEER_LEFT -> goto peer_lost
        :: else ->
            in_count[me] = planned;
            in_exhausted = in_exhausted | (exhausted -> BIT(me) : 0);
            in_failed = in_failed | (failed -> BIT(me) : 0);
            in_closing = in_closing | (CLOSING -> BIT(me) : 0);
            post(heads)
        fi;
        answer();
        do                                  /* of a mutant only */
        :: owed && ROOM(1) -> owed--; queue[me] = queue[me] + (CLOSING -> 0 : 1)
        :: !owed -> break
        od;
        true;
        d_step {
            total = 0;
            for (x : 0 .. R - 1) { total = total + out_count[x] }
            if
            :: total == 0 && out_exhausted == EVERYBODY && (END_IS_TESTED_FIRST || !(out_failed | out_closing)) ->
                ends = true
            :: else ->
                if
                :: out_failed | out_closing ->
                    /* A8: peers whose whole epoch was agreed on finish it normally. */
                    assert(total || out_exhausted != EVERYBODY);
                    name_cause()
                :: else ->
                    deal();
                    ends = (!FINISHED_RANKS_STAY && exhausted && !planned)
                fi
            fi;
            planned = 0; total = 0; y = 0;
            have_read()
        };
        if
        :: cause -> goto stop
        :: ends -> goto end_of_data
        :: else
        fi;

        /* Gather B. Besides what heads told, the tables tell all ranks whether a group can be split and whether costs
         * make ranks swap groups. Any rank's rows could say so; here rank 0's do. */
        if
        :: MAY_DIE
        :: left[me] -> goto leave
        :: me == 0 && uneven -> in_flags = 1
        :: me == 0 && moving && steps -> in_flags = 2
        :: me == 0 && uneven && steps -> in_flags = 3
        :: true
        fi;
        if
        :: PEER_LEFT -> goto peer_lost
        :: else -> post(counts)
        fi;
        answer();
        d_step {
            if
            :: out_flags & 2 ->
                moves = true; to = to | BIT((me + 1) % R); from = from | BIT((me + R - 1) % R)
            :: else
            fi;
            uneven = (out_flags & 1); moving = false;
            have_read()
        };

        /* The sizes of what may be split, in an uneven last round: `Program._split`. */
        if
        :: uneven ->
            uneven = false;
            if
            :: MAY_DIE
            :: left[me] -> goto leave
            :: true
            fi;
            if
            :: PEER_LEFT -> goto peer_lost
            :: else -> post(sizes)
            fi;
            answer();
            d_step { have_read() }
        :: else
        fi;

        /* `Program._exchange`: send, receive, and wait until all that was sent is received. */
        if
        :: to | from ->
            if
            :: MAY_DIE
            :: left[me] -> goto leave
            :: true
            fi;
            d_step {
                for (x : 0 .. R - 1) { inbox[x] = inbox[x] | (to & BIT(x) -> BIT(me) : 0) }
                x = 0
            };
            if
            :: (inbox[me] & from) == from -> inbox[me] = inbox[me] & ~from; from = 0
            :: (inbox[me] & from) != from && NO_MORE_WAITING -> goto peer_lost
            fi;
            if
            :: RECEIVED(0) && RECEIVED(1) && RECEIVED(R - 1) -> to = 0
            :: !(RECEIVED(0) && RECEIVED(1) && RECEIVED(R - 1)) && NO_MORE_WAITING -> goto peer_lost
            fi
        :: else
        fi;

        /* All ranks, where any has moved a group: none goes on before all have what is theirs (`ALL_HAVE_THEIRS`). */
        if
        :: moves && EXCHANGES_END_WITH_A_GATHER ->
            moves = false;
            if
            :: MAY_DIE
            :: left[me] -> goto leave
            :: true
            fi;
            if
            :: PEER_LEFT -> goto peer_lost
            :: else -> post(exchanged)
            fi;
            answer();
            d_step { have_read() }
        :: else -> moves = false
        fi;
        if
        :: !DELIVERS_BEFORE_NEXT_GATHER && me == 1 && !last -> owed = steps; agreed = agreed + steps; steps = 0
        :: else
        fi
    }

    /* `Program._deliver`, in bursts where there are images. */
    do
    :: atomic {
            steps ->
            if
            :: BURST == 0 -> part = steps; steps = 0
            :: else ->
                part = (steps < BURST -> steps : BURST);
                DECODES_AHEAD || ROOM(part);
                if
                :: MAY_DIE
                :: left[me] -> goto leave
                :: FAIL && TROUBLE_STRIKES; failed = true
                :: emptied = true           /* broken images: of the burst's last step nothing is left on this rank */
                :: true
                fi;
                if
                :: PEER_LEFT -> goto peer_lost
                :: else ->
                    in_failed = in_failed | (failed && BURSTS_CARRY_STATUS -> BIT(me) : 0);
                    in_closing = in_closing | (CLOSING && BURSTS_CARRY_STATUS -> BIT(me) : 0);
                    in_count[me] = !emptied;
                    post(burst)
                fi;
                answer();
                d_step {
                    if
                    :: out_failed | out_closing -> name_cause()
                    :: else ->
                        total = 0;
                        for (x : 0 .. R - 1) { total = total + out_count[x] }
                        steps = steps - part;
                        part = part - (EMPTY_STEPS_ARE_SKIPPED_BY_ALL -> total == 0 : emptied)
                    fi;
                    emptied = false; total = 0;
                    have_read()
                };
                if
                :: cause || failed -> goto stop
                :: else
                fi
            fi
        }
        do                                  /* `Channel.put`, step by step; what nobody wants is let go */
        :: part == 0 -> break
        :: atomic {
                part && ROOM(1) ->
                if
                :: CLOSING -> agreed = agreed + part; part = 0
                :: else -> queue[me]++; agreed++; part--
                fi
            }
        od
    :: steps == 0 && !last -> round++; goto plan
    :: steps == 0 && last -> break          /* all ranks were exhausted: no further gather */
    od;

end_of_data:
    atomic {
        surplus = 0;
        d_step { finish(NORMALLY) };
        goto run_over;

        /* `Program._stop`: one more gather tells the causes; then all raise, but those that close themselves. */
stop:   if
        :: MAY_DIE
        :: left[me] -> goto leave
        :: true
        fi;
        if
        :: PEER_LEFT -> goto peer_lost
        :: else -> post(messages)
        fi;
        answer();
        d_step {
            have_read();
            if
            :: !closes -> finish(IN_ERROR(cause))
            :: else
            fi
        };
        goto run_over;

        /* A peer left for good or died: an error, unless this rank leaves too. */
peer_lost:
        if
        :: left[me] -> goto leave
        :: else -> d_step { finish(IN_ERROR(LOST(gone - 1))) }
        fi;

run_over:
        epoch++;
        d_step {
            round = 0; planned = 0; surplus = 0; steps = 0; part = 0; agreed = 0; to = 0; from = 0; cause = 0;
            exhausted = false; failed = false; emptied = false; closes = false; ends = false; last = false;
            moving = false; uneven = false; moves = false; owed = 0;
            ran[me] = epoch
        };
        goto idle;

die:    dead = me + 1; away = away | BIT(me); gone = (gone -> gone : me + 1);
        goto over;

        /* "left" in the group's store: from here on nobody counts on this rank. */
leave:  if
        :: LEAVING_IS_TOLD -> away = away | BIT(me); gone = (gone -> gone : me + 1)
        :: else
        fi;
over:   skip
    }
}

/* ==== The trainer ================================================================================================= */

#define CAN_TAKE (queue[me] && (ERROR_COMES_AFTER_STEPS || !raises[me]))
#define AT_END (ended[me] && (queue[me] == 0 || (raises[me] && !ERROR_COMES_AFTER_STEPS)))
#define I_AM_DEAD (dead == me + 1)
#define MAY_BREAK (STOP == 2 && (TROUBLE == 0 || trouble < TROUBLE))
#define OUTSIDE(p) (looping[p] != epoch + 1 || dead == p + 1)

proctype Trainer(byte me) {
    byte epoch, step;
    bool stops;
    bit seen;

begin:
    atomic {        /* `Loader.__iter__` */
        open[me] = epoch + 1; looping[me] = epoch + 1; started[me] = epoch + 1;
        queue[me] = 0; held[me] = 0; ended[me] = false; raises[me] = false; step = 0;
        stops = (epoch == 0 && all_stop)
    }

next_step:
    atomic {        /* the loop breaks, or `Epoch.__next__`: a loop that waits in it can no longer break */
        if
        :: STOP == 2 && TROUBLE_STRIKES; goto break_off
        :: stops -> stops = false; goto break_off
        :: !stops && MAY_BREAK                              /* it decides not to */
        :: !stops && !MAY_BREAK && (held[me] || CAN_TAKE || AT_END || I_AM_DEAD)
        fi;
        if
        :: held[me]
        :: !held[me] && CAN_TAKE ->
            queue[me]--; held[me]++;
            do          /* the accumulation window leaves the queue before its first step is yielded */
            :: held[me] == A -> break
            :: held[me] < A && CAN_TAKE -> queue[me]--; held[me]++
            :: held[me] < A && AT_END ->
                if
                :: CUT_WINDOW_IS_YIELDED || !raises[me] -> break
                :: else -> held[me] = 0; goto no_more
                fi
            :: held[me] < A && I_AM_DEAD -> goto over
            od
        :: !held[me] && AT_END -> goto no_more
        :: I_AM_DEAD -> goto over
        fi;
        held[me]--; step++;
        if
        :: !ALLREDUCE -> goto next_step
        :: else
        fi;

        /* The step is yielded. All ranks reduce the same step, at the same place in the accumulation window. */
        if
        :: reducing == 0 -> reducing_what = step * A + held[me]
        :: else -> assert(reducing_what == step * A + held[me])
        fi;
        seen = reduced;
        reducing++;
        if
        :: reducing == R ->
            reducing = 0; reducing_what = 0; reduced = 1 - reduced; all_stop = false;
            if
            :: STOP == 1 && epoch == 0 -> all_stop = true
            :: true
            fi
        :: else
        fi;
        if
        :: reduced != seen -> seen = 0; stops = all_stop; goto next_step
        :: reduced == seen && (OUTSIDE(0) || OUTSIDE(1) || OUTSIDE(R - 1)) ->
            /* Documented, not promised: a loop that breaks alone leaves its peers in their all-reduce, until their
             * group's timeout or its exit frees them. No failure of a stage and no common stop may come to that. */
            assert(STOP == 2 || dead);
            seen = 0;
            reducing--;
            goto close
        fi;

        /* A1 and A8, as the loop sees them: every step that was agreed on came first. */
no_more:
        assert(dead || (step == fate_steps[epoch] && raises[me] == (fate[epoch] != NORMALLY)));
        assert(!raises[me] || FAIL || STOP == 2 || DEATH);
        step = 0;
        if
        :: epoch + 1 < EPOCHS -> epoch++; goto begin
        :: raises[me] || epoch + 1 == EPOCHS -> goto close
        fi
    }

break_off:
    atomic {        /* `Epoch.close` */
        open[me] = 0; queue[me] = 0; held[me] = 0; step = 0;
        CLOSE_RETURNS_AT_ONCE || ran[me] > epoch || I_AM_DEAD;
        looping[me] = 0;
        if
        :: epoch + 1 < EPOCHS -> epoch++; goto begin
        :: STOP == 2 || epoch + 1 == EPOCHS
        fi
    }

close:
    atomic {
        left[me] = true; open[me] = 0; looping[me] = 0; queue[me] = 0; held[me] = 0;    /* `Loader.close` */
over:   skip
    }
}

init {
    byte rank;
    atomic {
        if
        :: STOP == 1 -> all_stop = true     /* before the first step */
        :: true
        fi;
        do
        :: rank < R -> run Aligner(rank); run Trainer(rank); rank++
        :: else -> break
        od
    }
}
