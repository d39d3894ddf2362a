//! The solved codebooks. Written by `cargo xtask codebooks`; a test solves them again.

use super::solution::{Solution, Solved};

pub(super) const SOLVED: &[Solved] = &[
    Solved {
        dim: 16,
        scalar: [
            Solution { bytes: &[34, 111], unit: 0.013232739, relative_mse: 0.1058474811644321 },
            Solution { bytes: &[13, 40, 70, 109], unit: 0.018342407, relative_mse: 0.03008616710998846 },
            Solution {
                bytes: &[6, 18, 30, 43, 57, 72, 90, 115],
                unit: 0.021004107,
                relative_mse: 0.008099248260367342,
            },
            Solution {
                bytes: &[3, 9, 15, 21, 27, 33, 39, 46, 53, 60, 68, 76, 85, 96, 109, 127],
                unit: 0.021620704,
                relative_mse: 0.0021123769851247864,
            },
        ],
        nested: [
            Solution { bytes: &[24, 76], unit: 0.020161357, relative_mse: 0.10741227823804023 },
            Solution { bytes: &[14, 43, 77, 120], unit: 0.017547142, relative_mse: 0.030855743093355925 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 103],
                unit: 0.025004646,
                relative_mse: 0.008419868086256388,
            },
        ],
    },
    Solved {
        dim: 32,
        scalar: [
            Solution { bytes: &[20, 66], unit: 0.02256922, relative_mse: 0.11160032139864084 },
            Solution { bytes: &[14, 43, 76, 120], unit: 0.017284552, relative_mse: 0.032261995286330336 },
            Solution {
                bytes: &[6, 18, 30, 43, 57, 73, 92, 119],
                unit: 0.02147695,
                relative_mse: 0.008777747005472847,
            },
            Solution {
                bytes: &[3, 8, 13, 19, 24, 30, 36, 42, 48, 55, 62, 70, 79, 90, 103, 122],
                unit: 0.024412995,
                relative_mse: 0.002318923836934217,
            },
        ],
        nested: [
            Solution { bytes: &[27, 87], unit: 0.017779315, relative_mse: 0.1127550224870898 },
            Solution { bytes: &[14, 43, 77, 122], unit: 0.01753117, relative_mse: 0.03255136245476309 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 105],
                unit: 0.025010651,
                relative_mse: 0.008866181338100576,
            },
        ],
    },
    Solved {
        dim: 48,
        scalar: [
            Solution { bytes: &[32, 106], unit: 0.014118154, relative_mse: 0.11354713469213684 },
            Solution { bytes: &[11, 34, 60, 95], unit: 0.022075487, relative_mse: 0.033011923294244516 },
            Solution {
                bytes: &[6, 18, 30, 43, 57, 73, 93, 121],
                unit: 0.02162178,
                relative_mse: 0.009014734881846787,
            },
            Solution {
                bytes: &[3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 69, 78, 89, 102, 122],
                unit: 0.025162498,
                relative_mse: 0.0023873306351995804,
            },
        ],
        nested: [
            Solution { bytes: &[25, 81], unit: 0.019154163, relative_mse: 0.11458043882904279 },
            Solution { bytes: &[11, 34, 61, 97], unit: 0.022149522, relative_mse: 0.03319602968940316 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 106],
                unit: 0.025002431,
                relative_mse: 0.009072237750048062,
            },
        ],
    },
    Solved {
        dim: 64,
        scalar: [
            Solution { bytes: &[22, 73], unit: 0.02054781, relative_mse: 0.11452575954306954 },
            Solution { bytes: &[14, 43, 76, 121], unit: 0.017461622, relative_mse: 0.03339196788308618 },
            Solution {
                bytes: &[6, 18, 30, 43, 57, 73, 93, 122],
                unit: 0.02172201,
                relative_mse: 0.00913556788995562,
            },
            Solution {
                bytes: &[3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 69, 78, 89, 103, 123],
                unit: 0.02530771,
                relative_mse: 0.0024216692045471166,
            },
        ],
        nested: [
            Solution { bytes: &[20, 65], unit: 0.023906292, relative_mse: 0.11550122754964942 },
            Solution { bytes: &[14, 43, 77, 123], unit: 0.017522942, relative_mse: 0.03353207560234128 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 106],
                unit: 0.025012929,
                relative_mse: 0.009184873764145007,
            },
        ],
    },
    Solved {
        dim: 80,
        scalar: [
            Solution { bytes: &[28, 93], unit: 0.016151244, relative_mse: 0.11511457375122525 },
            Solution { bytes: &[13, 40, 71, 113], unit: 0.018762607, relative_mse: 0.03362030994621246 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 103],
                unit: 0.025829252,
                relative_mse: 0.009210972034630505,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 115],
                unit: 0.027329301,
                relative_mse: 0.0024369839216644706,
            },
        ],
        nested: [
            Solution { bytes: &[39, 127], unit: 0.012247179, relative_mse: 0.11605627671072516 },
            Solution { bytes: &[14, 43, 77, 123], unit: 0.017531684, relative_mse: 0.033739983341498636 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 106],
                unit: 0.025019435,
                relative_mse: 0.009257334293170438,
            },
        ],
    },
    Solved {
        dim: 96,
        scalar: [
            Solution { bytes: &[34, 113], unit: 0.013304846, relative_mse: 0.11550779338676098 },
            Solution { bytes: &[13, 40, 71, 113], unit: 0.018800108, relative_mse: 0.03377363559752222 },
            Solution {
                bytes: &[6, 18, 30, 43, 57, 74, 94, 123],
                unit: 0.021713533,
                relative_mse: 0.009263416988161688,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 115],
                unit: 0.027406013,
                relative_mse: 0.002451118715878886,
            },
        ],
        nested: [
            Solution { bytes: &[35, 114], unit: 0.013649753, relative_mse: 0.11642721233116282 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.022103263, relative_mse: 0.03388006729688808 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 106],
                unit: 0.025023857,
                relative_mse: 0.009307705328244986,
            },
        ],
    },
    Solved {
        dim: 112,
        scalar: [
            Solution { bytes: &[37, 123], unit: 0.012231006, relative_mse: 0.11578900456277252 },
            Solution { bytes: &[13, 40, 71, 113], unit: 0.01882689, relative_mse: 0.03388368350855553 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.02589196,
                relative_mse: 0.009293723306402546,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 116],
                unit: 0.027448496,
                relative_mse: 0.0024610595763266963,
            },
        ],
        nested: [
            Solution { bytes: &[27, 88], unit: 0.017689707, relative_mse: 0.116692749868332 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.022108525, relative_mse: 0.03397981638209313 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 106],
                unit: 0.025027055,
                relative_mse: 0.009344704770238854,
            },
        ],
    },
    Solved {
        dim: 128,
        scalar: [
            Solution { bytes: &[37, 123], unit: 0.012236749, relative_mse: 0.11600012788260583 },
            Solution { bytes: &[13, 40, 71, 113], unit: 0.018846978, relative_mse: 0.03396650970396964 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.025927562,
                relative_mse: 0.009319677872863141,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 116],
                unit: 0.027489647,
                relative_mse: 0.0024685765374334867,
            },
        ],
        nested: [
            Solution { bytes: &[23, 75], unit: 0.020762164, relative_mse: 0.1168921827161874 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.022112476, relative_mse: 0.03405535312224395 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.024998136,
                relative_mse: 0.00937186432392989,
            },
        ],
    },
    Solved {
        dim: 144,
        scalar: [
            Solution { bytes: &[37, 123], unit: 0.012241212, relative_mse: 0.11616446355133125 },
            Solution { bytes: &[13, 40, 71, 113], unit: 0.018862598, relative_mse: 0.03403110236134421 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.025955273,
                relative_mse: 0.009339986950317791,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 116],
                unit: 0.027521685,
                relative_mse: 0.002474487890198107,
            },
        ],
        nested: [
            Solution { bytes: &[38, 124], unit: 0.012561416, relative_mse: 0.11704745360724567 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.02211555, relative_mse: 0.03411453260627395 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.024999924,
                relative_mse: 0.009393014203756156,
            },
        ],
    },
    Solved {
        dim: 160,
        scalar: [
            Solution { bytes: &[37, 123], unit: 0.012244781, relative_mse: 0.1162960129908368 },
            Solution { bytes: &[13, 40, 71, 113], unit: 0.018875096, relative_mse: 0.03408288515742497 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.025977451,
                relative_mse: 0.009356311346763957,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 116],
                unit: 0.027547335,
                relative_mse: 0.0024792580753951743,
            },
        ],
        nested: [
            Solution { bytes: &[34, 111], unit: 0.014035617, relative_mse: 0.11717178028576047 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.02211801, relative_mse: 0.03416214582565358 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025001364,
                relative_mse: 0.009410140681154644,
            },
        ],
    },
    Solved {
        dim: 192,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021529162, relative_mse: 0.11649330166098082 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024318935, relative_mse: 0.03416020071831516 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026010739,
                relative_mse: 0.009380926745970353,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 96, 116],
                unit: 0.02758584,
                relative_mse: 0.002486482280412927,
            },
        ],
        nested: [
            Solution { bytes: &[30, 98], unit: 0.015902335, relative_mse: 0.1173584396320504 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.022121703, relative_mse: 0.034234014324437845 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025003536,
                relative_mse: 0.009436175862215457,
            },
        ],
    },
    Solved {
        dim: 224,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.0215359, relative_mse: 0.11663428700264311 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024336286, relative_mse: 0.034215351477221434 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026034528,
                relative_mse: 0.009398603978019171,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 65, 73, 84, 97, 117],
                unit: 0.027500097,
                relative_mse: 0.002493727182838912,
            },
        ],
        nested: [
            Solution { bytes: &[30, 98], unit: 0.01590456, relative_mse: 0.1174918875858928 },
            Solution { bytes: &[11, 34, 61, 98], unit: 0.022124343, relative_mse: 0.03428567809699623 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025005097,
                relative_mse: 0.009455027038480557,
            },
        ],
    },
    Solved {
        dim: 256,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021540951, relative_mse: 0.11674007967393507 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024349298, relative_mse: 0.03425678728144155 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026052378,
                relative_mse: 0.009411913836612773,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 65, 73, 84, 97, 117],
                unit: 0.027520832,
                relative_mse: 0.0024975486838446637,
            },
        ],
        nested: [
            Solution { bytes: &[26, 85], unit: 0.018341552, relative_mse: 0.11759205608196255 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017503457, relative_mse: 0.034324550049473435 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025006274,
                relative_mse: 0.009469305075142986,
            },
        ],
    },
    Solved {
        dim: 288,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.02154488, relative_mse: 0.11682239462771149 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024359418, relative_mse: 0.03428905826522033 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026066266,
                relative_mse: 0.009422296763610505,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 97, 117],
                unit: 0.027617307,
                relative_mse: 0.0024996659926900255,
            },
        ],
        nested: [
            Solution { bytes: &[26, 85], unit: 0.018343048, relative_mse: 0.11766998329435818 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017504672, relative_mse: 0.03435477333801207 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025007192,
                relative_mse: 0.009480493150151204,
            },
        ],
    },
    Solved {
        dim: 320,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.02154802, relative_mse: 0.11688826658490392 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024367515, relative_mse: 0.0343149022442335 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.02607738,
                relative_mse: 0.009430622537267674,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 97, 117],
                unit: 0.027630193,
                relative_mse: 0.002502032512959107,
            },
        ],
        nested: [
            Solution { bytes: &[26, 85], unit: 0.018344242, relative_mse: 0.11773236007364252 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017505642, relative_mse: 0.03437901906874763 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025007928,
                relative_mse: 0.009489495944499438,
            },
        ],
    },
    Solved {
        dim: 384,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.02155273, relative_mse: 0.11698710781536925 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024379658, relative_mse: 0.03435371355893779 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026094055,
                relative_mse: 0.00944314361490084,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 97, 117],
                unit: 0.02764953,
                relative_mse: 0.0025055995017578825,
            },
        ],
        nested: [
            Solution { bytes: &[37, 121], unit: 0.012888452, relative_mse: 0.1178259686405787 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.0175071, relative_mse: 0.034415499406724503 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025009036,
                relative_mse: 0.00950308749630846,
            },
        ],
    },
    Solved {
        dim: 448,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021556092, relative_mse: 0.1170577331354491 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024388332, relative_mse: 0.03438146926029506 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026105968,
                relative_mse: 0.009452111079614078,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 97, 117],
                unit: 0.027663345,
                relative_mse: 0.002508160030637696,
            },
        ],
        nested: [
            Solution { bytes: &[37, 121], unit: 0.01288935, relative_mse: 0.1178928692741974 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017508142, relative_mse: 0.034441638823041965 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.02500983,
                relative_mse: 0.009512860025129521,
            },
        ],
    },
    Solved {
        dim: 512,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021558616, relative_mse: 0.11711071548125462 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024394836, relative_mse: 0.034402304275006346 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026114905,
                relative_mse: 0.00945884972539568,
            },
            Solution {
                bytes: &[2, 7, 12, 17, 22, 27, 32, 38, 44, 50, 57, 64, 73, 83, 97, 117],
                unit: 0.02767371,
                relative_mse: 0.0025100873805208312,
            },
        ],
        nested: [
            Solution { bytes: &[37, 121], unit: 0.012890023, relative_mse: 0.11794306811130528 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017508922, relative_mse: 0.03446128821336136 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025010427,
                relative_mse: 0.009520224621897055,
            },
        ],
    },
    Solved {
        dim: 576,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021560576, relative_mse: 0.1171519318823635 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024399895, relative_mse: 0.03441852009865998 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026121859,
                relative_mse: 0.009464098630818096,
            },
            Solution {
                bytes: &[2, 6, 10, 14, 18, 22, 27, 31, 36, 41, 47, 53, 60, 69, 80, 97],
                unit: 0.033569645,
                relative_mse: 0.0025165213914446483,
            },
        ],
        nested: [
            Solution { bytes: &[22, 72], unit: 0.021666229, relative_mse: 0.11798210717929236 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017509531, relative_mse: 0.03447659762272548 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025010891,
                relative_mse: 0.009525973522098274,
            },
        ],
    },
    Solved {
        dim: 640,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021562146, relative_mse: 0.1171849099842539 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024403943, relative_mse: 0.03443149957121605 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.02612742,
                relative_mse: 0.009468302631465031,
            },
            Solution {
                bytes: &[2, 6, 10, 14, 18, 22, 27, 31, 36, 41, 47, 53, 60, 69, 80, 97],
                unit: 0.03357749,
                relative_mse: 0.0025176944271924073,
            },
        ],
        nested: [
            Solution { bytes: &[22, 72], unit: 0.021666933, relative_mse: 0.11801334414741527 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017510017, relative_mse: 0.03448886186974609 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025011264,
                relative_mse: 0.009530585807087544,
            },
        ],
    },
    Solved {
        dim: 768,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021564499, relative_mse: 0.11723438543510767 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024410013, relative_mse: 0.03445098013932846 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026135765,
                relative_mse: 0.009474616763376575,
            },
            Solution {
                bytes: &[2, 6, 10, 14, 18, 22, 27, 31, 36, 41, 47, 53, 60, 69, 80, 97],
                unit: 0.033589263,
                relative_mse: 0.002519458221001747,
            },
        ],
        nested: [
            Solution { bytes: &[22, 72], unit: 0.021667989, relative_mse: 0.11806021410789103 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017510746, relative_mse: 0.0345072860946789 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025011824,
                relative_mse: 0.009537526192354373,
            },
        ],
    },
    Solved {
        dim: 896,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.021566179, relative_mse: 0.11726973113683259 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.02441435, relative_mse: 0.034464903178641815 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026141725,
                relative_mse: 0.009479132834007586,
            },
            Solution {
                bytes: &[2, 6, 10, 14, 18, 22, 27, 31, 36, 41, 47, 53, 60, 69, 80, 97],
                unit: 0.033597674,
                relative_mse: 0.0025207211936446594,
            },
        ],
        nested: [
            Solution { bytes: &[22, 72], unit: 0.021668741, relative_mse: 0.11809370330389113 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017511267, relative_mse: 0.03452046671166564 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025012225,
                relative_mse: 0.009542499754119582,
            },
        ],
    },
    Solved {
        dim: 1024,
        scalar: [
            Solution { bytes: &[21, 70], unit: 0.02156744, relative_mse: 0.11729624374445635 },
            Solution { bytes: &[10, 31, 55, 88], unit: 0.024417602, relative_mse: 0.03447535002442248 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 79, 104],
                unit: 0.026146198,
                relative_mse: 0.00948252315666609,
            },
            Solution {
                bytes: &[2, 6, 10, 14, 18, 22, 27, 31, 36, 41, 47, 53, 60, 69, 80, 97],
                unit: 0.03360398,
                relative_mse: 0.0025216701317430923,
            },
        ],
        nested: [
            Solution { bytes: &[22, 72], unit: 0.021669308, relative_mse: 0.11811882602326451 },
            Solution { bytes: &[14, 43, 77, 124], unit: 0.017511658, relative_mse: 0.034530363357379024 },
            Solution {
                bytes: &[5, 15, 25, 36, 48, 62, 80, 107],
                unit: 0.025012525,
                relative_mse: 0.009546238759938985,
            },
        ],
    },
];
