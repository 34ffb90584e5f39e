#include "textflag.h"

// A string stops at a quote, a backslash, a control character, and at what is not ASCII. The last two are one
// comparison: taken as signed, both are less than a blank.

// func markAVX2(dst, src, stops *byte, blocks int)
TEXT ·markAVX2(SB), NOSPLIT, $0-32
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         stops+16(FP), DX
	MOVQ         blocks+24(FP), CX
	TESTQ        CX, CX
	JLE          end
	MOVQ         $0x2222222222222222, AX // quotes
	MOVQ         AX, X0
	VPBROADCASTQ X0, Y0
	MOVQ         $0x5c5c5c5c5c5c5c5c, AX // backslashes
	MOVQ         AX, X1
	VPBROADCASTQ X1, Y1
	MOVQ         $0x2020202020202020, AX // blanks
	MOVQ         AX, X2
	VPBROADCASTQ X2, Y2

block:
	VMOVDQU   (SI), Y3
	VMOVDQU   32(SI), Y4
	VMOVDQU   Y3, (DI)
	VMOVDQU   Y4, 32(DI)
	VPCMPEQB  Y3, Y0, Y5
	VPCMPEQB  Y3, Y1, Y6
	VPCMPGTB  Y3, Y2, Y7 // blank > byte
	VPOR      Y5, Y6, Y6
	VPOR      Y6, Y7, Y7
	VPMOVMSKB Y7, AX
	VPCMPEQB  Y4, Y0, Y5
	VPCMPEQB  Y4, Y1, Y6
	VPCMPGTB  Y4, Y2, Y7
	VPOR      Y5, Y6, Y6
	VPOR      Y6, Y7, Y7
	VPMOVMSKB Y7, BX
	SHLQ      $32, BX
	ORQ       BX, AX
	MOVQ      AX, (DX)
	ADDQ      $64, SI
	ADDQ      $64, DI
	ADDQ      $8, DX
	DECQ      CX
	JNZ       block
	VZEROUPPER

end:
	RET

// QUARTER leaves the bits of the 16 bytes at at in reg.
#define QUARTER(at, reg) \
	MOVOU    at(SI), X3 \
	MOVOU    X3, at(DI) \
	MOVO     X2, X4     \
	PCMPGTB  X3, X4     \
	MOVO     X3, X5     \
	PCMPEQB  X0, X5     \
	PCMPEQB  X1, X3     \
	POR      X5, X4     \
	POR      X3, X4     \
	PMOVMSKB X4, reg

// func markSSE2(dst, src, stops *byte, blocks int)
TEXT ·markSSE2(SB), NOSPLIT, $0-32
	MOVQ       dst+0(FP), DI
	MOVQ       src+8(FP), SI
	MOVQ       stops+16(FP), DX
	MOVQ       blocks+24(FP), CX
	TESTQ      CX, CX
	JLE        end
	MOVQ       $0x2222222222222222, AX
	MOVQ       AX, X0
	PUNPCKLQDQ X0, X0
	MOVQ       $0x5c5c5c5c5c5c5c5c, AX
	MOVQ       AX, X1
	PUNPCKLQDQ X1, X1
	MOVQ       $0x2020202020202020, AX
	MOVQ       AX, X2
	PUNPCKLQDQ X2, X2

block:
	QUARTER(0, AX)
	QUARTER(16, BX)
	QUARTER(32, R8)
	QUARTER(48, R9)
	SHLQ $16, BX
	SHLQ $32, R8
	SHLQ $48, R9
	ORQ  BX, AX
	ORQ  R8, R9
	ORQ  R9, AX
	MOVQ AX, (DX)
	ADDQ $64, SI
	ADDQ $64, DI
	ADDQ $8, DX
	DECQ CX
	JNZ  block

end:
	RET
