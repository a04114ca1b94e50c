# SPDX-License-Identifier: Apache-2.0
#
# A boot sector that serves requests, which arrive at a fixed rate whether or
# not it keeps up (an open loop). latency_guest.py writes its parameters, and
# reads from its memory how long each took.

        .code16
        .globl _start
_start:
        jmp     begin
        .org    4
interval: .long 0               # between requests, in ticks of the TSC
work:   .long 0                 # in a request, in ticks of the TSC
count:  .long 0                 # of requests that were served

        .equ    CHUNK, 20000    # turns of a calibration
        .equ    RUNS, 200       # of them the fastest counts
        .equ    MOST, 4096      # samples that are kept, at 0x10000
        .equ    PIT_HZ, 1193182
        .equ    INTERVALS_S, 100        # as latency_guest.py has it

begin:
        cli
        cld
        xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $0x7c00, %sp
        sti

        # How many turns are the work: a run that was interrupted by nothing.
        movw    $RUNS, %di
calibrate:
        rdtsc
        movl    %eax, %ebx
        movl    $CHUNK, %ecx
        call    spin
        rdtsc
        subl    %ebx, %eax
        cmpl    fastest, %eax
        jae     1f
        movl    %eax, fastest
1:      decw    %di
        jnz     calibrate
        movl    work, %eax
        movl    $CHUNK, %ecx
        mull    %ecx
        divl    fastest
        movl    %eax, turns

        rdtsc
        movl    %eax, due
        movl    %edx, due + 4
next:
        movl    interval, %eax
        addl    %eax, due
        adcl    $0, due + 4
wait:
        # The next interrupt of the timer, when the request arrives.
        cli
        call    since_due
        testl   %edx, %edx
        jns     serve
        negl    %eax
        movl    $(PIT_HZ / INTERVALS_S), %ecx
        mull    %ecx
        divl    interval
        incl    %eax
        movl    %eax, %ecx
        movb    $0x30, %al
        outb    %al, $0x43
        movb    %cl, %al
        outb    %al, $0x40
        movb    %ch, %al
        outb    %al, $0x40
        sti
        hlt
        jmp     wait
serve:
        sti
        movl    turns, %ecx
        call    spin
        call    since_due
        shrdl   $10, %edx, %eax
        movw    $0x1000, %bx
        movw    %bx, %es
        movl    count, %edi
        andl    $(MOST - 1), %edi
        shll    $2, %edi
        movl    %eax, %es:(%di)
        incl    count
        jmp     next

# The ticks since the request arrived, in edx:eax; below 0: it did not yet.
since_due:
        rdtsc
        subl    due, %eax
        sbbl    due + 4, %edx
        ret

spin:
        decl    %ecx
        jnz     spin
        ret

        .balign 4
due:    .long   0, 0
turns:  .long   0
fastest: .long 0xffffffff
        .org    510
        .word   0xaa55
