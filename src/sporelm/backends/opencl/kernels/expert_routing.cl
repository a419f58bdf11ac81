// The K experts of each token, and their weights: see `ops/expert_routing.py`. An item has one token.
// SCORES_...: how experts are scored. EXPERTS in GROUPS groups, of which TOP_GROUPS are eligible. `choice` and `scored`
// have EXPERTS numbers for each token.
#define SIZE (EXPERTS / GROUPS)

kernel void route_tokens(global const real *logits, global const float *selection_bias, global const float *factors,
                         global float *choices, global float *scores, global float *weights, global int *ids,
                         int tokens, float epsilon, float scale, float near_limit) {
    RETURN_IF_DUMMY_LAUNCH
    int token = get_global_id(0);
    if (token >= tokens) return;
    logits += (size_t)token * EXPERTS;
    weights += (size_t)token * K;
    ids += (size_t)token * K;
    global float *choice = choices + (size_t)token * EXPERTS;
    global float *scored = scores + (size_t)token * EXPERTS;

#ifdef SCORES_softmax
    float peak = -INFINITY, sum = 0.0f;
    for (int e = 0; e < EXPERTS; e++) peak = fmax(peak, LOAD(logits, e));
    for (int e = 0; e < EXPERTS; e++) {
        scored[e] = exp(LOAD(logits, e) - peak);
        sum += scored[e];
    }
    for (int e = 0; e < EXPERTS; e++) scored[e] /= sum;
#elif defined(SCORES_sigmoid)
    for (int e = 0; e < EXPERTS; e++) scored[e] = act_sigmoid(LOAD(logits, e));
#else
    for (int e = 0; e < EXPERTS; e++) scored[e] = LOAD(logits, e);
#endif
    for (int e = 0; e < EXPERTS; e++) {
#ifdef BY_LOGITS
        float v = LOAD(logits, e);
#else
        float v = scored[e];
#endif
#ifdef SELECTION_BIAS
        v += selection_bias[e];
#endif
        choice[e] = isnan(v) ? -INFINITY : v;
    }

    uchar eligible[GROUPS];
    for (int g = 0; g < GROUPS; g++) eligible[g] = TOP_GROUPS == GROUPS;
#if TOP_GROUPS != GROUPS
    float best[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int e = g * SIZE; e < (g + 1) * SIZE; e++) {
            if (choice[e] > first) {
                second = first;
                first = choice[e];
            } else {
                second = fmax(second, choice[e]);
            }
        }
#ifdef SUM_OF_TWO
        first += second;
#endif
        best[g] = isnan(first) ? -INFINITY : first;
    }
    for (int n = 0; n < TOP_GROUPS; n++) {
        int taken = -1;
        for (int g = 0; g < GROUPS; g++)
            if (!eligible[g] && (taken < 0 || best[g] > best[taken])) taken = g;
        eligible[taken] = 1;
    }
#endif

    uint chosen[(EXPERTS + 31) / 32];
    for (int i = 0; i < (EXPERTS + 31) / 32; i++) chosen[i] = 0;
    for (int slot = 0; slot < K; slot++) {
        int taken = -1;
        for (int e = 0; e < EXPERTS; e++) {
            if (!eligible[e / SIZE] || chosen[e / 32] >> e % 32 & 1) continue;
            if (taken < 0 || choice[e] > choice[taken]) taken = e;
        }
        ids[slot] = taken;
#ifdef SCORES_softmax_of_near
        // Softmax over this expert and those within near_limit that are not selected yet.
        float own = LOAD(logits, taken), total = 0.0f;
        for (int e = 0; e < EXPERTS; e++) {
            float v = LOAD(logits, e);
            int is_far = (own - v) / fmax(fabs(v), own) > near_limit;
            if (!(chosen[e / 32] >> e % 32 & 1) && !is_far) total += exp(v - own);
        }
        weights[slot] = 1.0f / total;
#else
        weights[slot] = scored[taken];
#endif
        chosen[taken / 32] |= 1u << taken % 32;
    }

#ifdef SCORES_softmax_of_chosen
    float most = -INFINITY, total = 0.0f;
    for (int slot = 0; slot < K; slot++) most = fmax(most, weights[slot]);
    for (int slot = 0; slot < K; slot++) {
        weights[slot] = exp(weights[slot] - most);
        total += weights[slot];
    }
    for (int slot = 0; slot < K; slot++) weights[slot] /= total;
#endif
#ifdef SCORES_sigmoid_of_chosen
    for (int slot = 0; slot < K; slot++) weights[slot] = act_sigmoid(weights[slot]);
#endif
    float divisor = 1.0f;
#ifdef RENORMALIZE
    divisor = epsilon;
    for (int slot = 0; slot < K; slot++) divisor += weights[slot];
#endif
    for (int slot = 0; slot < K; slot++) {
        float weight = weights[slot] / divisor * scale;
#ifdef FACTORS
        weight *= factors[ids[slot]];
#endif
        weights[slot] = weight;
    }
}
