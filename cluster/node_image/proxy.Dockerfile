# kube-proxy works by the program nft, which is not static: it comes with its libraries and nothing else.
ARG BASE
FROM ${BASE} AS tools
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends nftables \
    && mkdir -p -m 1777 /out/tmp \
    && for file in /usr/sbin/nft $(ldd /usr/sbin/nft | grep -o '/[^ ]*'); do cp --parents -L "$file" /out; done

FROM scratch
COPY --from=tools /out /
COPY bin/kube-proxy /usr/local/bin/kube-proxy
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin
ENTRYPOINT ["/usr/local/bin/kube-proxy"]
